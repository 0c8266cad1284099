"""verl's tree for a run, and what the jobs share that train in a Ray of the product's own: one trainer in their
process, with workers of theirs.

Import only what needs no Ray at the top: its environment must be set first.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cppo_lab.cores.verl.cluster import longer_start_timeout
from cppo_lab.cores.verl.core import TaskRunner
from cppo_lab.sweep.compose import Composed


def tree(
    made: Composed, resume: Path | None = None, folder: Path = Path("/somewhere/runs"), **more: Any
) -> Any:
    """verl's tree for a run, of which nothing is there."""
    from cppo_lab.cores.verl.config import verl_config
    from cppo_lab.cores.verl.files import planned_files

    files = planned_files(made.run, made.paths, folder, folder / made.run.run_id, resume)
    return verl_config(made.run, made.layout, files, **more)


def configured(
    run: Composed,
    layout: Any,
    ray_init: Any,
    shared: Path,
    own: Path,
    resume: Path | None = None,
    **more: Any,
) -> Any:
    """verl's tree for a run, checked; its model and data are made."""
    from cppo_lab.cores.verl.config import check_config, verl_config
    from cppo_lab.cores.verl.files import planned_files, require_files

    files = planned_files(run.run, run.paths, shared, own, resume)
    require_files(run.run, files, shared)
    config = verl_config(run.run, layout, files, **more)
    config.ray_kwargs.ray_init = ray_init
    check_config(run.run, layout, config)
    return config


def worker_class() -> type:
    """Our training worker, which says what weights it has, and of which earlier steps it has copies; its rule can be
    changed between steps.
    """
    from verl.single_controller.base.decorator import Dispatch, register

    from cppo_lab.cores.verl.worker import TrustRegionWorker
    from tests.cores.verl.cpu_engine import weights

    class SeenWorker(TrustRegionWorker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def policy(self) -> tuple[dict[str, Any], list[int]]:
            return weights(self.actor), sorted(self._policies)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def use_rule(self, loss: Any) -> None:
            config = copy.copy(self.actor_config)
            object.__setattr__(config, "policy_loss", loss)
            self.use_loss(config)

    return SeenWorker


def queued(batch: Any, keys: list[str], names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a batch, row by row."""
    import transfer_queue as tq

    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(names))
    return {name: [row.clone() for row in data[name].unbind()] for name in names}


def train_here(
    config: Any, train: Callable[[Any], object] | None = None, begin: Callable[[], object] = dict
) -> None:
    """Train in this process by verl's `run_ppo`; `begin` is called once Ray is up."""
    from verl.trainer.main_ppo import run_ppo

    class Here:
        """What verl takes for the actor that trains: this process."""

        @staticmethod
        def remote() -> Any:
            begin()
            return Here

        class run:  # a method of Ray's handles
            @staticmethod
            def remote(config: Any) -> Any:
                import ray

                (train or TaskRunner().run)(config)
                return ray.put(None)

    with longer_start_timeout():
        run_ppo(config, task_runner_class=Here)
