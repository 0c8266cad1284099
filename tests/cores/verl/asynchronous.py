"""A run with `rollout.mode=async` in a Ray of the product's own, for `test_async_runs`: FOLDER KILLED OVERRIDE...

Before step KILLED (0: none) is trained the process is killed. What was submitted, sampled and trained goes to
FOLDER/<step>.pt.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from cppo_lab.cores.verl import checkpoints
from cppo_lab.cores.verl.core import own_ray
from cppo_lab.sweep.compose import Composed, compose
from tests.cores.verl.in_process import configured, queued, train_here, worker_class

STEPS, EVERY, BOUND = 6, 3, 2
SETTINGS = [
    "core=verl", "model=tiny_qwen3", "rule=cppo", "seed=3", f"training.t_stop={STEPS}", f"validation.every={EVERY}",
    "validation.samples=1", "batch.responses=8", "layout.checkpoint_every=1", "rollout.mode=async",
    f"rollout.max_staleness={BOUND}",
]  # fmt: skip
COLUMNS = (
    "prompts", "responses", "rollout_log_probs", "rollout_topk_ids", "rollout_topk_logp", "policy_step",
)  # fmt: skip


def composed(*overrides: str) -> Composed:
    """The run."""
    return compose([*SETTINGS, *overrides])


def slow(server: Any) -> None:
    """In a rollout server's process: the trainer finds it in the middle of a batch nearly always."""
    from cppo_lab.cores.verl.rollout import cpu

    log_policy = cpu.log_policy

    def later(*given: Any) -> torch.Tensor:
        time.sleep(0.03)  # noqa: TID251  is what is tested
        return log_policy(*given)

    cpu.log_policy = later


def trainer_class(folder: Path, killed: int) -> Any:
    """Our trainer, which notes what it does."""
    import ray
    import transfer_queue as tq

    from cppo_lab.cores.verl.trainer import AsyncLabTrainer

    class Seen(AsyncLabTrainer):
        def on_train_begin(self) -> None:
            restored = tq.kv_list("train") or {}
            self.seen: dict[str, Any] = {
                "submitted": [], "restored": sorted({tag["status"] for tag in restored.get("train", {}).values()}),
                "weights": {self.global_steps - 1: self.actor_rollout_wg.policy()[0][0]},
            }  # fmt: skip
            if self.config.actor_rollout_ref.rollout.name == "cppo_cpu":
                ray.get(self.llm_server_manager.server_handles[0].__ray_call__.remote(slow))
            super().on_train_begin()

        def _submit_batch_to_rollout(self, batch: Any) -> int:
            self.seen["submitted"] += list(batch["uid"])
            return int(super()._submit_batch_to_rollout(batch))

        def _balance_batch(self, batch: Any, *given: Any, **named: Any) -> Any:
            if self.global_steps == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            keys = sorted(batch.keys)
            self.seen |= queued(batch, keys, COLUMNS)
            self.seen["trained"] = [key.split("_")[0] for key in keys]
            return super()._balance_batch(batch, *given, **named)

        def on_step_end(self) -> None:
            super().on_step_end()
            self.seen["weights"][self.global_steps] = self.actor_rollout_wg.policy()[0][0]
            torch.save(self.seen, folder / f"{self.global_steps}.pt")

    return Seen


def main(folder: Path, killed: int, *overrides: str) -> None:
    """Train the run in `folder`, from its last checkpoint if it has one."""
    run = composed(*overrides)
    several = {"actor_rollout_ref.rollout.max_num_seqs": 4}  # others wait, and are aborted before they begin
    layout = run.layout.model_copy(update={"verl": run.layout.verl | several})
    with own_ray(layout) as ray_init:
        from cppo_lab.cores.verl import trainer

        step = checkpoints.last_readable(folder)
        checkpoints.drop_rows_after(folder, step)
        resume = None if step is None else checkpoints.checkpoint_folder(folder, step)
        config = configured(run, layout, ray_init, folder, folder, resume)
        trainer.TrustRegionWorker = worker_class()  # type: ignore[misc]
        trainer.AsyncLabTrainer = trainer_class(folder, killed)  # type: ignore[misc]
        train_here(config)


if __name__ == "__main__":
    # Under its importable name, so that Ray's workers find it.
    from tests.cores.verl import asynchronous

    asynchronous.main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
