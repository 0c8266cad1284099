"""The Ray actor that holds our trainer: verl's TaskRunner with another trainer class."""

from contextlib import suppress
from typing import Any

import ray
from omegaconf import OmegaConf


@ray.remote(num_cpus=1)
class TaskRunner:
    """Started by `verl.trainer.main_ppo.run_ppo`."""

    def run(self, config: Any) -> None:
        """Train the run of `config` to its end."""
        import transfer_queue
        from verl.utils.import_utils import load_class_from_fqn

        from cppo_lab.cores.verl.checkpoints import writing
        from cppo_lab.cores.verl.config import lab_settings
        from cppo_lab.cores.verl.trainer import LabTrainer, PolicyBroken

        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        transfer_queue.init(config.transfer_queue)
        try:
            with writing(lab_settings(config).folder):
                trainer = LabTrainer(config=config)
                trainer.init()
                manager = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
                loops = manager.create(
                    config=config,
                    llm_client=trainer.get_llm_client(),
                    teacher_client=trainer.get_teacher_client(),
                    reward_loop_worker_handles=trainer.get_reward_handles(),
                )
                with suppress(PolicyBroken):
                    trainer.fit(loops)
        finally:
            transfer_queue.close()
