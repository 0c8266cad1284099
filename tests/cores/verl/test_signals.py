"""Slurm warns every process of a job with SIGUSR2: the run's own process hears it, and Ray's live on."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from cppo_lab.cores.verl import core

pytestmark = [pytest.mark.verl, pytest.mark.slow]

RUN = """
import os, signal, time
import psutil
from cppo_lab.cores.verl.core import _signals_after_ray, own_ray
from cppo_lab.sweep.compose import compose

heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
with own_ray(compose(["core=verl", "model=tiny_qwen3"]).layout) as ray_init, _signals_after_ray() as runner:
    import ray
    ray.init(**ray_init)
    try:
        runner.options(no_such_option=1)  # verl has started Ray and asks for its runner
    except ValueError:
        pass

    @ray.remote(num_cpus=1)
    class Worker:
        def answer(self):
            return os.getpid()

    worker = Worker.remote()
    pid = ray.get(worker.answer.remote())
    below = psutil.Process().children(recursive=True)
    assert pid in {process.pid for process in below} and len(below) > 3
    time.sleep(1)
    below = [process for process in below if process.is_running()]  # without what Ray runs for a moment
    for process in [*below, psutil.Process()]:
        process.send_signal(signal.SIGUSR2)
    time.sleep(1)
    assert ray.get(worker.answer.remote()) == pid
    ended = [process.pid for process in below if not process.is_running()]
    print("ended:", ended, "heard:", len(heard), flush=True)
"""
CANCELLED = """
import os, signal, sys, time
import psutil
from cppo_lab.cores.verl.core import _signals_after_ray, own_ray
from cppo_lab.sweep.compose import compose

def end(*_):
    raise SystemExit("told to end")

signal.signal(signal.SIGTERM, end)
try:
    with own_ray(compose(["core=verl", "model=tiny_qwen3"]).layout) as ray_init, _signals_after_ray() as runner:
        import ray
        ray.init(**ray_init)
        try:
            runner.options(no_such_option=1)
        except ValueError:
            pass

        @ray.remote(num_cpus=1)
        def long():
            time.sleep(100)

        waiting = long.remote()
        time.sleep(3)
        everything = [*psutil.Process().children(recursive=True), psutil.Process()]
        for process in everything:
            try:
                process.send_signal(signal.SIGTERM)
            except psutil.NoSuchProcess:  # ended with its raylet
                pass
        ray.get(waiting)
except SystemExit as error:
    # Ray's shutdown would look ten seconds for processes that were told as well.
    print("said:", error, "without a shutdown:", ray.is_initialized(), flush=True)
"""


def test_rays_processes_outlive_a_warning() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=600)
    assert "ended: [] heard: 1" in done.stdout, done.stdout + done.stderr


def test_a_run_that_is_cancelled_with_its_ray_has_the_time_for_its_last_words() -> None:
    """Slurm sends SIGTERM to every process of the job."""
    done = subprocess.run([sys.executable, "-c", CANCELLED], capture_output=True, text=True, timeout=600)
    assert "said: told to end" in done.stdout and "without a shutdown: True" in done.stdout, (
        done.stdout + done.stderr
    )


class Told(SystemExit):
    """What a handler of the run raises."""


@pytest.mark.parametrize("signalled", [False, True])
def test_ray_that_ends_is_a_failure_unless_a_signal_follows(
    signalled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*_: object) -> None:
        raise Told

    def ended(config: object, task_runner_class: object) -> None:
        if signalled:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        sys.exit(1)  # as ray.get does when its raylet is gone

    monkeypatch.setattr("verl.trainer.main_ppo.run_ppo", ended)
    monkeypatch.setattr(core, "ENDING_SECONDS", 60.0 if signalled else 1.0)
    before = signal.signal(signal.SIGTERM, told)
    try:
        with pytest.raises(Told if signalled else RuntimeError, match=None if signalled else "out of memory"):
            core._run(None)
    finally:
        signal.signal(signal.SIGTERM, before)
