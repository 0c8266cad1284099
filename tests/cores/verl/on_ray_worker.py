"""The training worker of `on_ray`: our own, whose rule can be changed between steps."""

import copy
from typing import Any

from omegaconf import OmegaConf
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.config import omega_conf_to_dataclass

from cppo_lab.cores.verl.worker import TrustRegionWorker


class RuleByRule(TrustRegionWorker):
    """One rank of actor and rollout."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def use_rule(self, values: dict[str, Any]) -> None:
        """Train with `actor.policy_loss` of these values from now on."""
        config = copy.copy(self.actor_config)
        object.__setattr__(config, "policy_loss", omega_conf_to_dataclass(OmegaConf.create(values)))
        self.use_loss(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def whole_weights(self) -> dict[str, Any]:
        """The actor's parameters, gathered over the ranks."""
        from tests.cores.verl.cpu_engine import weights

        return weights(self.actor)
