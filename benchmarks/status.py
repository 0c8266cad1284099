"""Time of `cppo status` with 10 to 10,000 known runs.

A folder of runs as the recorder leaves them: of every ten, six are done, two failed, one was interrupted and one waits
in Slurm's queue, as the record of jobs and a stand-in for `squeue` say. Seconds are those of the whole command, the
start of Python included, the fastest of three; beside them the seconds that `squeue` itself takes.

    python benchmarks/status.py [--quick]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from summary.form import result

from cppo_lab import schema
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.runs.folder import write_status
from cppo_lab.sweep.compose import compose

TARGETS = {"seconds_10000": 2.0}
KINDS = [schema.DONE] * 6 + [schema.FAILED] * 2 + [schema.PARTIAL, schema.QUEUED]
ARRAY = 1000  # tasks of one submission
SQUEUE = """#!{python}
import sys
mark = next(word for word in sys.argv if word.startswith("--format=")).removeprefix("--format=").partition("%")[0]
sys.stdout.writelines(mark + line for line in open("{lines}"))
"""


def made(runs: Path, number: int) -> list[str]:
    """The folders of so many runs and the record of the queued ones; the ids of these."""
    spec = compose([]).run
    about = {"core": "mini", "rule": spec.rule.name, "model": spec.model.name, "t_stop": 40, "gpus": 8}
    waiting = []
    for i in range(number):
        run_id, kind = f"{i:012x}", KINDS[i % len(KINDS)]
        if kind == schema.QUEUED:
            waiting.append(run_id)
            continue
        folder = runs / run_id
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "config.json").write_text(spec.model_dump_json())
        reason = "" if kind == schema.DONE else "RuntimeError: no memory left"
        told = {"status": kind, "seed": i, "step": 40, "score": 0.5, "reason": reason, "seconds": 3600.0}
        write_status(
            folder, {**about, **told, "started": 1.0, "updated": 2.0, "record": f"{i:032x}", "run_id": run_id}
        )
    return waiting


def submitted(runs: Path, waiting: list[str]) -> list[str]:
    """What `squeue` says of runs that are submitted as arrays."""
    lines = []
    with Ledger(runs) as ledger:
        for first in range(0, len(waiting), ARRAY):
            some = waiting[first : first + ARRAY]
            token = ledger.claim(some)
            ledger.submitted(token, 100 + first)
            for i in range(len(some)):
                job = f"{100 + first}_{i}" if len(some) > 1 else f"{100 + first}"
                lines.append(f"{job}|{os.getuid()}|PENDING|Resources|{token}|cppo")
    return lines


def seconds(command: list[str], folder: Path) -> tuple[float, str]:
    """The fastest of three, and what the command printed."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": path}
    best, text = float("inf"), ""
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        best, text = min(best, time.perf_counter() - start), done.stdout
    return best, text


def measure(number: int) -> dict[str, float]:
    """Seconds of the command and of its `squeue` with so many known runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "runs").mkdir()
        waiting = made(folder / "runs", number)
        lines = folder / "squeue.txt"
        lines.write_text("".join(f"{line}\n" for line in submitted(folder / "runs", waiting)))
        for command, text in (
            ("squeue", SQUEUE.format(python=sys.executable, lines=lines)),
            ("scontrol", "#!/bin/sh\n"),
        ):
            (folder / "bin" / command).write_text(text)
            (folder / "bin" / command).chmod(0o755)
        taken, said = seconds([sys.executable, "-m", "cppo_lab.cli", "status"], folder)
        assert f"{number} runs: " in said.splitlines()[-1]
        assert f"{number // 10} queued" in said.splitlines()[-1]
        return {
            "status": taken,
            "squeue": seconds([str(folder / "bin" / "squeue"), "--format=%i"], folder)[0],
        }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="10 runs")
    quick = parser.parse_args().quick
    figures: dict[str, float] = {}
    for number in [10] if quick else [10, 100, 1000, 10_000]:
        found = measure(number)
        print(f"{number} runs: {found['status']:.2f} s, of which squeue {found['squeue']:.2f} s", flush=True)
        figures[f"seconds_{number}"] = found["status"]
        figures[f"squeue_seconds_{number}"] = found["squeue"]
    print(result("status", figures, {"*": "s"}, at_most=TARGETS, quick=quick).line())


if __name__ == "__main__":
    main()
