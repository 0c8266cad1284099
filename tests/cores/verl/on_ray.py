"""All that is tested in a Ray of the product's own on one machine, with one trainer: run by the fixture `on_ray`.

Ray's environment must be set before it is imported, so this is a process of its own. Two training ranks with a
rollout server each. It validates as `cppo evaluate` lets it, each of its training steps has another rule, and then it
trains the runs of `stale`. What is seen goes to FOLDER/<part>.json, a file for a part.
"""

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from cppo_lab.cores.verl.core import TaskRunner, _signals_after_ray, own_ray
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.groups import add_rule
from tests.cores.verl import stale
from tests.cores.verl.conftest import steps_in
from tests.cores.verl.in_process import configured, train_here, tree, worker_class
from tests.cores.verl.story import OVERRIDES, RULE
from tests.waiting import until

FOREIGN = "one_sided"  # of another package (tests/rules), by its import path
# One for each way to the loss: a mask, with budgets, on KL, with a column of its own, of whole responses, and of
# another package. The first is not the story's: both begin alike. Every rule in verl's micro-batches: `test_parity`.
RULES = ("dppo", "cppo", "trm_max_avg", "cppo_no_prefix_budget_shuffled", "gspo", FOREIGN)
# A step whose minibatches do not both have a signal shows nothing of the second one: the rule has the next step too.
MOST_STEPS = 8 * len(RULES)


def composed(rule: str, *more: str) -> Composed:
    """The story's run under another rule, on this job's ranks."""
    if rule == FOREIGN:  # as its file beside a sweep, and `rule.path` on the command line
        constants = {"name": rule, "delta": "${trust_region.delta}", "options": {"slack": 0.0}}
        add_rule(rule, {"rule": {**constants, "path": f"tests.rules.acme_rules:{rule}"}}, f"{rule}.yaml")
    here = [f"layout.devices_per_node={stale.RANKS}", "layout.topk_dtype=float16"]
    return compose([*OVERRIDES, *here, "model=tiny_qwen3", "seed=0", f"rule={rule}", *more])


def listening(processes: list[psutil.Process]) -> list[str]:
    """The addresses on which these processes listen."""
    places = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            sockets = process.net_connections("tcp")
            places += [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    return places


def below() -> list[psutil.Process]:
    """Ray's daemons and workers."""
    return psutil.Process().children(recursive=True)


def send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def trainer_class(folder: Path, job: "Job") -> Any:
    """Our trainer, with another rule at each step; before the last one every process is warned."""
    from verl.utils.config import omega_conf_to_dataclass

    from cppo_lab.answers.tokens import write as write_tokens
    from cppo_lab.cores.verl import checkpoints
    from cppo_lab.cores.verl.trainer import LabTrainer

    class EveryRule(LabTrainer):
        trained: list[tuple[str, int]]

        def fit(self, loops: Any) -> None:
            self.trained = []
            # The run's own number of steps says which problems it has, and they are the story's. Checkpoints and
            # validations after the first are the story's too; here they would cost time.
            self.total_training_steps = MOST_STEPS
            self.config.trainer.update(test_freq=-1, save_freq=-1, val_only=True)
            self._save_checkpoint()
            super().fit(loops)
            job.part("validated", lambda: steps_in(folder))
            self.config.trainer.update(val_only=False, val_before_train=False)
            super().fit(loops)
            job.part("trained", lambda: self.trained)
            job.part("warned", job.warned)
            self.use_rule(RULE)
            run, start = composed(RULE, stale.SETTING).run, checkpoints.checkpoint_folder(folder, 0)
            place = folder / "stale"
            job.part("stale", lambda: stale.train_all(self, run, start, place, job.shared, loops))

        def use_rule(self, rule: str) -> None:
            actor = tree(job.specs[rule]).actor_rollout_ref.actor
            self.actor_rollout_wg.use_rule(omega_conf_to_dataclass(actor.policy_loss))

        def _submit_batch_to_rollout(self, batch: Any) -> int:
            rule = RULES[len(self.trained)]
            if rule == RULES[-1]:
                job.warn()
            self.spec = job.specs[rule].run
            self.use_rule(rule)
            return int(super()._submit_batch_to_rollout(batch))

        def _validates(self, step: int) -> bool:
            return True  # so that answers are kept at every step

        def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
            self._answers.spec = self.spec
            updated = super()._update_actor(batch, metrics)
            if self._answers._tokens is not None:
                (folder / f"tokens-{self.global_steps}.npz").write_bytes(write_tokens(self._answers._tokens))
            self._answers._forget()
            kept = {self._order[key.split("_")[0]] for key in batch.keys if not key.startswith("pad")}
            # A batch without variance trains nothing, and keeps its keys.
            if self._trains and len({place // self.spec.batch.minibatch_prompts for place in kept}) == 2:
                self.trained.append((self.spec.rule.name, self.global_steps))
                if len(self.trained) == len(RULES):
                    self.total_training_steps = self.global_steps
            return updated

    return EveryRule


class Job:
    """The parts in their order."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared
        self.specs = {rule: composed(rule) for rule in RULES}
        self.heard: list[int] = []
        self.lasting: dict[psutil.Process, str] = {}

    def write(self, part: str, seen: Any) -> None:
        partial = self.folder / f"{part}.partial"
        partial.write_text(json.dumps(seen))
        partial.replace(self.folder / f"{part}.json")

    def part(self, name: str, look: Callable[[], Any]) -> None:
        """Write down what a part has seen, or how it failed; the next one goes on."""
        try:
            self.write(name, look())
        except Exception:  # noqa: BLE001  whatever it is
            self.write(name, {"failed": traceback.format_exc()})

    def run(self) -> None:
        first = self.specs[RULES[0]]
        signal.signal(signal.SIGUSR2, lambda *_: self.heard.append(1))
        with own_ray(first.layout) as ray_init:
            answers = first.tracking.answers
            config = configured(first, first.layout, ray_init, self.shared, self.folder, answers=answers)
            with _signals_after_ray() as runner:

                def begin() -> None:
                    with contextlib.suppress(ValueError):
                        runner.options(no_such_option=1)  # verl has started Ray and asks for its runner

                train_here(config, self.everything, begin)

    def everything(self, config: Any) -> None:
        from cppo_lab.cores.verl import trainer

        self.part("up", self.up)
        trainer.TrustRegionWorker = worker_class()  # type: ignore[misc]
        trainer.LabTrainer = trainer_class(self.folder, self)  # type: ignore[misc]
        self.part("done", lambda: TaskRunner().run(config))
        self.write("cancelled", {"failed": "not cancelled"})
        self.cancel()

    def up(self) -> dict[str, Any]:
        """What listens before there is a process group, whose store listens on all interfaces."""
        import ray

        worker = ray.get(ray.remote(lambda: os.getpid()).remote())
        processes = below()
        assert worker in {process.pid for process in processes}
        return {
            "listening": listening(processes),
            "address": ray.get_runtime_context().gcs_address,
            "processors": ray.cluster_resources()["CPU"],
            "environment": {key: value for key, value in os.environ.items() if key.startswith("RAY_")},
            "folder": os.environ["RAY_TMPDIR"],
        }

    def warn(self) -> None:
        """SIGUSR2 to every process, as Slurm sends it; all of verl's actors are there."""
        names = {process: " ".join(process.cmdline()) for process in below()}
        # Without those that Ray keeps for the next task, and may end at any time.
        self.lasting = {process: name for process, name in names.items() if "ray::IDLE" not in name}
        send(signal.SIGUSR2, [*self.lasting, psutil.Process()])

    def warned(self) -> dict[str, Any]:
        """After a step through the agent loop, both servers, the queue and both ranks."""
        ended = [
            name
            for process, name in self.lasting.items()
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        ]
        return {"names": list(self.lasting.values()), "ended": ended, "heard": bool(self.heard)}

    def cancel(self) -> None:
        """SIGTERM to every process while this one waits for a task."""
        import ray

        class Cancelled(SystemExit):
            pass

        def end(*_: object) -> None:
            raise Cancelled

        begun = self.folder / "begun"

        @ray.remote(num_cpus=1)
        def long() -> None:
            begun.touch()
            time.sleep(100_000)  # noqa: TID251  hangs until it is killed

        waiting = long.remote()
        until("the task has begun", begun.exists)
        signal.signal(signal.SIGTERM, end)
        try:
            send(signal.SIGTERM, [*below(), psutil.Process()])
            ray.get(waiting)
        except Cancelled as cancelled:
            raise SystemExit("cancelled") from cancelled


def main(folder: Path, shared: Path) -> None:
    """Run all parts; the last one cancels the run."""
    job = Job(folder, shared)
    try:
        job.run()
    except SystemExit as error:
        import ray

        # Ray's shutdown would look ten seconds for processes that were told as well.
        job.write("cancelled", {"said": str(error), "shut_down": not ray.is_initialized()})


if __name__ == "__main__":
    # Under its importable name, so that Ray's workers find it.
    from tests.cores.verl import on_ray

    on_ray.main(Path(sys.argv[1]), Path(sys.argv[2]))
