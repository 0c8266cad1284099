"""All that is tested in a Ray of the product's own on one machine, with one trainer: run by the fixture `on_ray`.

Ray's environment must be set before it is imported, so this is a process of its own. Two training ranks with a
rollout server each; each training step has another rule. What is seen goes to FOLDER/<part>.json, a file for a part.
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

from cppo_lab.cores.verl.cluster import longer_start_timeout
from cppo_lab.cores.verl.core import _signals_after_ray, own_ray
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.groups import add_rules
from tests.cores.verl.story import OVERRIDES
from tests.waiting import until

FOREIGN = "one_sided"  # of another package (tests/rules), by its import path
# Those of the figures, one that carries a column of its own, one that weighs whole responses, and one of another
# package. The first is not the story's: both begin alike.
RULES = (
    "dppo", "cppo", "grpo", "cispo", "minpro", "trm_max_avg", "cppo_soft", "cppo_no_prefix_budget_shuffled", "gspo",
    FOREIGN,
)  # fmt: skip
RANKS = 2
# A step whose minibatches do not both have a signal shows nothing of the second one: the rule has the next step too.
MOST_STEPS = 8 * len(RULES)
HERE = [f"layout.devices_per_node={RANKS}", "layout.topk_dtype=float16"]


def composed(rule: str) -> Composed:
    """The story's run under another rule, on this job's ranks."""
    if rule == FOREIGN:  # as its file beside a sweep, and `rule.path` on the command line
        constants = {"name": rule, "delta": "${trust_region.delta}", "options": {"slack": 0.0}}
        add_rules({rule: {"rule": {**constants, "path": f"tests.rules.acme_rules:{rule}"}}}, f"{rule}.yaml")
    return compose([*OVERRIDES, *HERE, "model=tiny_qwen3", "seed=0", f"rule={rule}"])


def write(folder: Path, part: str, found: Any) -> None:
    partial = folder / f"{part}.partial"
    partial.write_text(json.dumps(found))
    partial.replace(folder / f"{part}.json")


# -- Ray's processes ---------------------------------------------------------------------------------------------------


def listening(processes: list[psutil.Process]) -> list[str]:
    """Listening TCP sockets of these processes as /proc has them (`ss` may not be installed)."""
    inodes = set()
    for process in processes:
        for link in _open_files(process.pid):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            part = line.split()
            if part[3] == "0A" and part[9] in inodes:
                found.append(part[1])
    return found


def _open_files(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended meanwhile
        return []


def below() -> list[psutil.Process]:
    """Ray's daemons and workers."""
    return psutil.Process().children(recursive=True)


def survives_sigusr2(process: psutil.Process) -> bool:
    """Whether SIGUSR2 would not end it; True for one that has ended by itself."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if status["State"].startswith("Z"):
        return True
    bit = 1 << (signal.SIGUSR2 - 1)
    return bool((int(status["SigIgn"], 16) | int(status["SigBlk"], 16) | int(status["SigCgt"], 16)) & bit)


def send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


# -- The rollout -------------------------------------------------------------------------------------------------------

COLUMNS = (
    "prompts",
    "responses",
    "rollout_log_probs",
    "rollout_topk_ids",
    "rollout_topk_logp",
    "response_mask",
)
PROBLEMS = 3


def prompts(dataset: Any, step: int, validate: bool) -> Any:
    """A batch of problems as verl's trainer hands it to the agent loop manager."""
    from verl.utils import tensordict_utils
    from verl.utils.dataset.rl_dataset import collate_fn

    kind = "val" if validate else "train"
    rows = [dataset[i] | {"uid": f"{kind}{step}-{i}", "index": i} for i in range(PROBLEMS)]
    # To a problem without its end the model does not answer with the usual number of symbols.
    rows[1]["raw_prompt"] = [one | {"content": one["content"][:2]} for one in rows[1]["raw_prompt"]]
    batch = tensordict_utils.get_tensordict(collate_fn(rows))
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", step)
    if validate:
        tensordict_utils.assign_non_tensor_data(batch, "validate", True)
    return batch


def responses(manager: Any, dataset: Any, step: int, validate: bool) -> dict[str, dict[str, Any]]:
    """Send a batch and wait for its responses: key without uid -> columns. The queue is as before."""
    import transfer_queue

    partition = "val" if validate else "train"
    batch = prompts(dataset, step, validate)
    names = list(batch["uid"])
    manager.generate_sequences(batch)

    def listed() -> dict[str, Any] | None:
        found = transfer_queue.kv_list(partition).get(partition, {})
        states = [found.get(name, {}).get("status") for name in names]
        return found if all(state in ("finished", "failure") for state in states) else None

    tags = until("all responses are there", listed)
    assert tags is not None and all(tags[name]["status"] == "finished" for name in names), tags
    keys = sorted(key for key in tags if key.split("_")[0] in names and "_" in key)
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition)
    found = {
        key.split("-")[1]: {name: data[name][i] for name in COLUMNS if name in data} | {"tag": tags[key]}
        for i, key in enumerate(keys)
    }
    transfer_queue.kv_clear(keys=[*names, *keys], partition_id=partition)
    return found


def alignment(model: Any, found: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """Largest errors of log mu and of its Top-K against a forward pass, over all responses."""
    import torch

    sampled, kept = 0.0, 0.0
    for row in found.values():
        prompt, tokens = row["prompts"], row["responses"]
        with torch.no_grad():
            logits = model(torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits, -1)
        error = logp.gather(-1, tokens[:, None])[:, 0] - row["rollout_log_probs"]
        sampled = max(sampled, float(error.abs().max()))
        error = logp.gather(-1, row["rollout_topk_ids"].long()).half() - row["rollout_topk_logp"]
        kept = max(kept, float(error.abs().max()))
    return sampled, kept


def sampled_before_training(trainer: Any, manager: Any, model: Any) -> dict[str, Any]:
    """What the servers say with the model that they were started with."""
    dataset = trainer.val_dataset
    first, again = (responses(manager, dataset, 3, False) for _ in range(2))
    validation = [responses(manager, dataset, step, True) for step in (3, 4)]
    some = next(iter(first.values()))
    tokens = [row["responses"].tolist() for row in first.values()]
    return {
        "sessions": sorted(first),
        "columns": sorted(name for name in some if name != "tag"),
        "dtypes": [str(some[name].dtype) for name in ("rollout_topk_ids", "rollout_topk_logp")],
        "rows": [list(row["rollout_topk_ids"].shape) for row in first.values()],
        "lengths": [len(row["responses"]) for row in first.values()],
        "errors": alignment(model, first),
        "repeated": tokens == [row["responses"].tolist() for row in again.values()],
        "validation_columns": sorted(name for name in next(iter(validation[0].values())) if name != "tag"),
        "validations_equal": [row["responses"].tolist() for row in validation[0].values()]
        == [row["responses"].tolist() for row in validation[1].values()],
        "sessions_differ": len({str(one) for one in tokens}) > PROBLEMS,
        "steps": sorted({row["tag"]["min_global_steps"] for row in first.values()}),
    }


def sampled_after_training(trainer: Any, manager: Any, model: Any) -> dict[str, Any]:
    """The same with the weights that verl has pushed after its last step."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    now = trainer.actor_rollout_wg.whole_weights()[0]
    missing, unexpected = model.load_state_dict(now, strict=False)
    found = responses(manager, trainer.val_dataset, 3, False)
    return {
        "missing": [*missing, *unexpected],
        "moved": max(float((now[name] - before[name]).abs().max()) for name in now),
        "errors": alignment(model, found),
        "steps": sorted({row["tag"]["min_global_steps"] for row in found.values()}),
    }


# -- Training ----------------------------------------------------------------------------------------------------------


def policy_loss(one: Composed, folder: Path) -> dict[str, Any]:
    """verl's `actor.policy_loss` for a rule, as plain values."""
    from omegaconf import OmegaConf

    from cppo_lab.cores.verl.config import verl_config
    from cppo_lab.cores.verl.files import planned_files

    files = planned_files(one.run, one.paths, folder, folder)
    section = verl_config(one.run, one.layout, files).actor_rollout_ref.actor.policy_loss
    values = OmegaConf.to_container(section, resolve=True)
    assert isinstance(values, dict)
    return values


def trainer_class(folder: Path, job: "Job") -> Any:
    """Our trainer, with another rule at each step."""
    import ray
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from cppo_lab.answers.tokens import write as write_tokens
    from cppo_lab.cores.verl.trainer import LabTrainer
    from tests.cores.verl.on_ray_worker import RuleByRule

    class EveryRule(LabTrainer):
        trained: list[tuple[str, int]]

        def _init_resource_pool_mgr(self) -> None:
            super()._init_resource_pool_mgr()
            for role, actor in self.role_worker_mapping.items():
                if issubclass(actor.__ray_metadata__.modified_class, ActorRolloutRefWorker):
                    self.role_worker_mapping[role] = ray.remote(RuleByRule)

        def fit(self, loops: Any) -> None:
            self.trained = []
            # The run's own number of steps says which problems it has, and they are the story's. Checkpoints and
            # validations after the first are the story's too; here they would cost time.
            self.total_training_steps = MOST_STEPS
            self.config.trainer.test_freq = self.config.trainer.save_freq = -1
            job.part("sampled", lambda: sampled_before_training(self, loops, job.model()))
            super().fit(loops)
            job.part("trained", lambda: self.trained)
            job.part("sampled_after", lambda: sampled_after_training(self, loops, job.model()))
            job.part("warned", lambda: job.warn(lambda: responses(loops, self.val_dataset, 3, False)))

        def _submit_batch_to_rollout(self, batch: Any) -> int:
            rule = RULES[len(self.trained)]
            self.spec = job.specs[rule].run
            self.actor_rollout_wg.use_rule(policy_loss(job.specs[rule], folder))
            return int(super()._submit_batch_to_rollout(batch))

        def _is_validated(self) -> bool:
            return True  # so that answers are kept at every step

        def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
            self._answers.spec = self.spec
            found = super()._update_actor(batch, metrics)
            if self._answers._tokens is not None:
                (folder / f"tokens-{self.global_steps}.npz").write_bytes(write_tokens(self._answers._tokens))
            self._answers._forget()
            kept = {self._order[key.split("_")[0]] for key in batch.keys if not key.startswith("pad")}
            if len({place // self.spec.batch.minibatch_prompts for place in kept}) == 2:
                self.trained.append((self.spec.rule.name, self.global_steps))
                if len(self.trained) == len(RULES):
                    self.total_training_steps = self.global_steps
            return found

    return EveryRule


class Job:
    """The parts in their order."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared
        self.specs = {rule: composed(rule) for rule in RULES}
        self.heard: list[int] = []
        self._model: Any = None

    def part(self, name: str, found: Callable[[], Any]) -> None:
        """Write down what a part has found, or how it failed; the next one goes on."""
        try:
            write(self.folder, name, found())
        except Exception:  # noqa: BLE001  whatever it is
            write(self.folder, name, {"failed": traceback.format_exc()})

    def model(self) -> Any:
        """The run's model in this process, to compare with."""
        import torch
        from transformers import AutoModelForCausalLM

        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(self.files.model, dtype=torch.float32)
        return self._model

    def run(self) -> None:
        one = self.specs[RULES[0]]
        signal.signal(signal.SIGUSR2, lambda *_: self.heard.append(1))
        with own_ray(one.layout) as ray_init:
            from verl.trainer.main_ppo import run_ppo

            from cppo_lab.cores.verl.config import check_config, set_answers, verl_config
            from cppo_lab.cores.verl.files import planned_files, require_files

            self.files = planned_files(one.run, one.paths, self.shared, self.folder)
            require_files(one.run, self.files, self.shared)
            config = verl_config(one.run, one.layout, self.files)
            config.ray_kwargs.ray_init = ray_init
            set_answers(config, one.tracking.answers)
            check_config(one.run, one.layout, config)
            with longer_start_timeout(), _signals_after_ray() as runner:
                run_ppo(config, task_runner_class=self._here(runner))

    def _here(self, runner: Any) -> Any:
        """What verl takes for the actor that trains: this process itself, which saves one."""
        job = self

        class Here:
            @staticmethod
            def remote() -> Any:
                with contextlib.suppress(ValueError):
                    runner.options(no_such_option=1)  # verl has started Ray and asks for its runner
                return Here

            class run:  # a method of Ray's handles
                @staticmethod
                def remote(config: Any) -> Any:
                    import ray

                    job.everything(config)
                    return ray.put(None)

        return Here

    def everything(self, config: Any) -> None:
        from cppo_lab.cores.verl import trainer
        from cppo_lab.cores.verl.task_runner import TaskRunner

        self.part("up", self.up)
        trainer.LabTrainer = trainer_class(self.folder, self)  # type: ignore[misc]
        plain: Any = TaskRunner
        self.part("done", lambda: plain.__ray_metadata__.modified_class().run(config))
        write(self.folder, "cancelled", {"failed": "not cancelled"})
        self.cancel()

    def up(self) -> dict[str, Any]:
        """What listens before there is a process group, whose store listens on all interfaces."""
        import ray

        @ray.remote(num_cpus=1)
        class Worker:
            def pid(self) -> int:
                return os.getpid()

        worker = Worker.remote()
        pid = ray.get(worker.pid.remote())
        processes = below()
        assert pid in {process.pid for process in processes}
        return {
            "listening": listening(processes),
            "address": ray.get_runtime_context().gcs_address,
            "processors": ray.cluster_resources()["CPU"],
            "environment": {key: value for key, value in os.environ.items() if key.startswith("RAY_")},
            "folder": os.environ["RAY_TMPDIR"],
        }

    def warn(self, ask: Callable[[], Any]) -> dict[str, Any]:
        """SIGUSR2 to every process, as Slurm sends it; all of verl's actors are there."""
        processes = below()
        mortal = [process.cmdline() for process in processes if not survives_sigusr2(process)]
        # Without those that Ray keeps for the next task, and may end at any time.
        lasting = [process for process in processes if "ray::IDLE" not in " ".join(process.cmdline())]
        names = [" ".join(process.cmdline()) for process in lasting]
        send(signal.SIGUSR2, [*lasting, psutil.Process()])
        ask()  # through the agent loop, both servers and the queue
        ended = [name for process, name in zip(lasting, names, strict=True) if not process.is_running()]
        return {"mortal": mortal, "names": names, "ended": ended, "heard": len(self.heard)}

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
        write(folder, "cancelled", {"said": str(error), "shut_down": not ray.is_initialized()})


if __name__ == "__main__":
    # Under its importable name, so that Ray's workers find it.
    from tests.cores.verl import on_ray

    on_ray.main(Path(sys.argv[1]), Path(sys.argv[2]))
