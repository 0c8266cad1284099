"""Runs with `rollout.staleness` in a Ray of the product's own, with one trainer: run by `test_staleness`.

Two training ranks with a rollout server each. Every run begins at a checkpoint of the trainer, the first ones at that
of step 0: what it keeps in memory is that of another run. Servers decode request by request, so that numbers do not
depend on when requests arrive. What is seen goes to FOLDER/seen.pt.
"""

import hashlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cppo_lab.core_records import CHECKPOINTS
from cppo_lab.cores.verl import checkpoints
from cppo_lab.cores.verl.core import own_ray
from cppo_lab.sweep.compose import Composed, compose
from tests.cores.verl.in_process import configured, queued, seen_worker, train_here, with_workers

STALENESS = (0, 2)
STEPS, EVERY = 4, 2
RANKS = 2
# The steps behind which the stale run is killed: before it has all of its copies, and with them.
KILLED = (1, 3)
SETTINGS = [
    "model=tiny_qwen3", "rule=cppo", "seed=3", f"training.t_stop={STEPS}", f"validation.every={EVERY}",
    "validation.samples=1", "batch.prompts=4", "batch.minibatch_prompts=2", "batch.responses=8",
]  # fmt: skip
COLUMNS = ("prompts", "responses", "rollout_log_probs", "rollout_topk_ids", "rollout_topk_logp", "rm_scores")


def composed(staleness: int) -> Composed:
    """A run of this job."""
    return compose(
        ["core=verl", *SETTINGS, f"layout.devices_per_node={RANKS}", f"rollout.staleness={staleness}"]
    )


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Of all tensors under their names, bit for bit."""
    whole = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        whole.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()


def has(server: Any) -> str:
    """The digest of a rollout server's weights, in its process."""
    return digest(server.model.state_dict())


def trainer_class(folder: Path, specs: dict[int, Composed]) -> Any:
    """Our trainer, which trains all runs, and goes on from each of their checkpoints."""
    import ray

    from cppo_lab.cores.verl.rollout.cpu import server_name
    from cppo_lab.cores.verl.trainer import LabTrainer

    class Stale(with_workers(seen_worker), LabTrainer):  # type: ignore[misc]
        seen: dict[str, Any]

        def fit(self, loops: Any) -> None:
            self.agent_loop_manager = loops
            start = checkpoints.checkpoint_folder(folder / "start", 0)
            self._enter(folder / "start", 0, None)
            self._save_checkpoint()
            for staleness in STALENESS:
                name = f"{staleness}"
                self._train(name, staleness, start, loops)
                for step in KILLED if staleness else ():
                    whole = checkpoints.checkpoint_folder(folder / name, step)
                    self._train(f"{name} from {step}", staleness, whole, loops)

        def _enter(self, own: Path, staleness: int, resume: Path | None) -> None:
            own.mkdir(exist_ok=True)
            self.spec, self.folder, self._broken = specs[staleness].run, own, ""
            trainer = self.config.trainer
            trainer.default_local_dir = str(own / CHECKPOINTS)
            trainer.max_actor_ckpt_to_keep = None
            trainer.resume_mode = "disable" if resume is None else "resume_path"
            trainer.resume_from_path = None if resume is None else str(resume)

        def _train(self, name: str, staleness: int, resume: Path, loops: Any) -> None:
            self._enter(folder / name, staleness, resume)
            self.seen = {"sampled": {}, "validated": {}, "trained": {}, "copies": {}, "batches": {}}
            fresh = resume.name == "global_step_0"
            self.config.trainer.val_before_train = fresh
            self._checkpoint_every = 1 if fresh and staleness else None
            if not fresh:  # as a kill behind this step leaves the folder
                shutil.copytree(resume, checkpoints.checkpoint_folder(self.folder, int(resume.name[12:])))
            self._init_dataloader()
            self._load_checkpoint()
            self.on_init_end()
            self._see_policy()
            super().fit(loops)
            rows = dict(row for _, row in checkpoints.rows(self.folder))
            torch.save(self.seen | {"rows": rows}, folder / f"{name}.pt")

        def _see_policy(self) -> None:
            ranks = [(digest(policy), copies) for policy, copies in self.actor_rollout_wg.policy()]
            assert ranks == [ranks[0]] * RANKS
            self.seen["trained"][self.global_steps], self.seen["copies"][self.global_steps] = ranks[0]

        def _served(self) -> set[str]:
            """What the servers have."""
            servers = [ray.get_actor(server_name(rank)) for rank in range(RANKS)]
            return set(ray.get([server.__ray_call__.remote(has) for server in servers]))

        def on_step_end(self) -> None:
            super().on_step_end()
            self._see_policy()

        def _validate(self) -> dict[str, float]:
            self.seen["validated"][self.global_steps] = self._served()
            return dict(super()._validate())

        def _balance_batch(self, batch: Any, *given: Any, **named: Any) -> Any:
            self.seen["sampled"][self.global_steps] = self._served()
            order = sorted(
                batch.keys, key=lambda key: (self._order[key.split("_")[0]], int(key.split("_")[1]))
            )
            self.seen["batches"][self.global_steps] = queued(batch, order, COLUMNS)
            return super()._balance_batch(batch, *given, **named)

    return Stale


def main(folder: Path) -> None:
    """Train all runs in `folder`."""
    specs = {staleness: composed(staleness) for staleness in STALENESS}
    first = specs[STALENESS[0]]
    layout = first.layout.model_copy(update={"verl": {"actor_rollout_ref.rollout.max_num_seqs": 1}})
    with own_ray(layout) as ray_init:
        from cppo_lab.cores.verl import trainer

        config = configured(first, layout, ray_init, folder, folder / "start")
        trainer.LabTrainer = trainer_class(folder, specs)  # type: ignore[misc]

        train_here(config)


if __name__ == "__main__":
    # Under its importable name, so that Ray's workers find it.
    from tests.cores.verl import stale

    stale.main(Path(sys.argv[1]))
