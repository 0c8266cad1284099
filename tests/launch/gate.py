"""A gate at a named step of training: the runs of a launch wait there, however fast or slow the machine is."""

import os
import subprocess
from pathlib import Path

from tests.waiting import until

SITE = Path(__file__).with_name("gate_site")


class Gate:
    """Holds every run of the embedded core where it is about to replace its checkpoint for the `validation`-th time.

    That validation's step is on record, and the checkpoint is that of the validation before. A signal reaches a run
    that waits, and its other threads go on. For processes with `environment`, and those that they start; it is open
    when it is removed, or nobody has it any more.
    """

    def __init__(self, folder: Path, validation: int) -> None:
        self._pipe = folder / f"gate{len(list(folder.glob('gate?')))}"
        self._arrived = self._pipe.with_suffix(".arrived")
        self._validation = validation
        os.mkfifo(self._pipe)
        self._arrived.touch()
        self._held = self._pipe.open(
            "r+b", buffering=0
        )  # who reads waits for as long as somebody could write

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to meet the gate."""
        path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")]))
        return {
            **os.environ,
            "PYTHONPATH": path,
            "CPPO_TEST_GATE": str(self._pipe),
            "CPPO_TEST_GATE_AT": str(self._validation),
        }

    def reached(self, launcher: "subprocess.Popen[str]", runs: int = 1) -> list[int]:
        """Wait until so many runs of the launcher wait at the gate; the ids of their processes."""
        until(
            f"{runs} runs wait at the gate",
            lambda: len(self._arrived.read_text().splitlines()) >= runs or launcher.poll() is not None,
        )
        assert launcher.poll() is None, launcher.communicate()
        return [int(line) for line in self._arrived.read_text().splitlines()]

    def remove(self) -> None:
        """Let who waits go on, and whoever comes later."""
        self._pipe.unlink()
        self._held.close()
