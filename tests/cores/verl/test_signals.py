"""Slurm warns every process of a job with SIGUSR2: the run's own process hears it, and Ray's live on."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.cores.verl import core
from cppo_lab.cores.verl.cluster import remove_abandoned
from tests.cores.verl.conftest import OnRay
from tests.waiting import until

pytestmark = [pytest.mark.verl, pytest.mark.slow]


def test_rays_processes_outlive_a_warning(on_ray: OnRay) -> None:
    """Daemons, the queue, two ranks, two servers, agent loop and reward workers: they answer afterwards."""
    seen = on_ray.found("warned")
    assert seen["mortal"] == [] and seen["ended"] == [] and seen["heard"] == 1
    named = " ".join(seen["names"])
    actors = ("WorkerDict", "CpuServerActor", "AgentLoopWorkerTQ", "RewardLoopWorker", "SimpleStorageUnit")
    for part in ("raylet", "gcs_server", *actors):
        assert part in named, named


def test_a_run_that_is_cancelled_with_its_ray_has_the_time_for_its_last_words(on_ray: OnRay) -> None:
    """Slurm sends SIGTERM to every process of the job. Ray's own shutdown would look for them for ten seconds."""
    assert on_ray.found("done") is None
    on_ray.wait()
    assert on_ray.found("cancelled") == {"said": "cancelled", "shut_down": False}
    folder = Path(on_ray.found("up")["folder"])

    def gone() -> bool:
        remove_abandoned()  # as the next run does: Ray's processes may have written while it was removed
        return not folder.exists()

    until("Ray's folder is gone", gone)


class Told(SystemExit):
    """What a handler of the run raises."""


@pytest.mark.parametrize("signalled", [False, True])
def test_ray_that_ends_is_a_failure_unless_a_signal_follows(
    signalled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*_: object) -> None:
        raise Told

    def ended(config: object, task_runner_class: object) -> None:
        sys.exit(1)  # as ray.get does when its raylet is gone

    def wait(seconds: float) -> None:
        assert seconds == core.ENDING_SECONDS > 0
        if signalled:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("verl.trainer.main_ppo.run_ppo", ended)
    monkeypatch.setattr(core, "time", SimpleNamespace(sleep=wait))
    before = signal.signal(signal.SIGTERM, told)
    try:
        with pytest.raises(Told if signalled else RuntimeError, match=None if signalled else "out of memory"):
            core._run(None)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_error_of_verls_trainer_is_its_cause_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray wraps it once for each process that it passes, and pydantic ends with a link."""
    from ray.exceptions import RayTaskError

    said = "1 validation error\n  rollout.n must be positive\n\nFor further information visit https://errors.invalid\n"

    def fail(config: object, task_runner_class: object) -> None:
        inner = RayTaskError("work", "its traceback", ValueError(said))
        raise RayTaskError("run", "its traceback", inner)

    monkeypatch.setattr("verl.trainer.main_ppo.run_ppo", fail)
    with pytest.raises(RuntimeError) as caught:
        core._run(None)
    assert str(caught.value) == "ValueError: rollout.n must be positive"
