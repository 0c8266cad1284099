"""Runs with `rollout.staleness` in the trainer of `on_ray`, for `test_staleness`.

Every run begins at a checkpoint of the trainer, the first one at that of step 0: what it keeps in memory is that of
another run. Servers decode request by request, so that numbers do not depend on when requests arrive. What is seen
goes to FOLDER/<run>.pt.
"""

from pathlib import Path
from typing import Any

import torch

from cppo_lab.core_records import CHECKPOINTS
from cppo_lab.cores.mini.warm_start import weights_digest
from cppo_lab.cores.verl import checkpoints
from cppo_lab.spec import VerlRun
from tests.cores.verl.in_process import queued
from tests.cores.verl.story import EVERY

STALENESS, STEPS, RANKS = 2, 4, 2
SETTING = f"rollout.staleness={STALENESS}"
# The run, and the steps behind which it is killed: before it has all of its copies, and with them.
WHOLE, KILLED = "whole", (1, 3)
COLUMNS = ("prompts", "responses", "rollout_log_probs", "rollout_topk_ids", "rollout_topk_logp", "rm_scores")


def has(server: Any) -> str:
    """The digest of a rollout server's weights, in its process."""
    return weights_digest(server.model.state_dict())


def one_by_one(server: Any) -> None:
    """Let a rollout server decode request by request."""
    server.config.max_num_seqs = 1


def train_all(trainer: Any, run: VerlRun, start: Path, folder: Path, loops: Any) -> None:
    """Train `run` from the checkpoint `start`, and on from its own, with a trainer that has trained others."""
    import ray

    from cppo_lab.cores.verl.rollout.cpu import server_name

    servers = [ray.get_actor(server_name(rank)) for rank in range(RANKS)]

    def of_servers(work: Any) -> set[Any]:
        return set(ray.get([server.__ray_call__.remote(work) for server in servers]))

    class Stale(type(trainer).__base__):  # type: ignore[misc]  # our trainer, without what `on_ray` adds
        seen: dict[str, Any]

        def train_from(self, name: str, start: Path) -> None:
            self.seen = {"sampled": {}, "validated": {}, "trained": {}, "copies": {}, "batches": {}}
            self.folder, self._broken, fresh = folder / name, "", name == WHOLE
            self.folder.mkdir(parents=True)
            self._checkpoint_every = 1 if fresh else None
            self.config.trainer.update(
                default_local_dir=str(self.folder / CHECKPOINTS),
                resume_from_path=str(start),
                val_before_train=fresh,
            )
            self._init_dataloader()
            self.total_training_steps = STEPS
            self._load_checkpoint()
            self.on_init_end()
            self._see_policy()
            self.fit(loops)
            rows = dict(row for _, row in checkpoints.rows(self.folder))
            torch.save(self.seen | {"rows": rows}, folder / f"{name}.pt")

        def _see_policy(self) -> None:
            ranks = [(weights_digest(policy), copies) for policy, copies in self.actor_rollout_wg.policy()]
            assert ranks == [ranks[0]] * RANKS
            self.seen["trained"][self.global_steps], self.seen["copies"][self.global_steps] = ranks[0]

        def on_step_end(self) -> None:
            super().on_step_end()
            self._see_policy()

        def _validate(self) -> dict[str, float]:
            self.seen["validated"][self.global_steps] = of_servers(has)
            return dict(super()._validate())

        def _balance_batch(self, batch: Any, *given: Any, **named: Any) -> Any:
            self.seen["sampled"][self.global_steps] = of_servers(has)
            order = sorted(
                batch.keys, key=lambda key: (self._order[key.split("_")[0]], int(key.split("_")[1]))
            )
            self.seen["batches"][self.global_steps] = queued(batch, order, COLUMNS)
            return super()._balance_batch(batch, *given, **named)

    of_servers(one_by_one)
    trainer.__class__ = Stale
    trainer.spec, trainer._answer_settings, trainer._answers = run, None, None
    trainer.config.trainer.update(
        resume_mode="resume_path", test_freq=EVERY, save_freq=1, max_actor_ckpt_to_keep=None
    )
    trainer.train_from(WHOLE, start)
    for step in KILLED:
        trainer.train_from(f"from {step}", checkpoints.checkpoint_folder(folder / WHOLE, step))
