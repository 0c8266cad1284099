"""Slurm warns every process of a job with SIGUSR2: the run's own process hears it, and Ray's live on."""

import subprocess
import sys

import pytest

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
    for process in [*below, psutil.Process()]:
        process.send_signal(signal.SIGUSR2)
    time.sleep(1)
    assert ray.get(worker.answer.remote()) == pid
    print("ended:", [process.name() for process in below if not process.is_running()], "heard:", len(heard))
"""


def test_rays_processes_outlive_a_warning() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=120)
    assert "ended: [] heard: 1" in done.stdout, done.stdout + done.stderr
