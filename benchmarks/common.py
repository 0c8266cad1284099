"""What all benchmarks share: figures with targets, the last line that `make bench` reads, clocks, processes.

A benchmark's last line is JSON:

    {"figures": {"seconds_10000": {"value": 4.1, "unit": "s", "at_most": 10.0, "at_least": null, "absent": ""}, ...}}

`at_most` or `at_least` is the target. A figure that could not be measured has `value` null and says in `absent` why.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `dev` and `tests` are no part of the package

FULL_ONLY = "only measured in the full run"
V = TypeVar("V")


@dataclass(frozen=True)
class Figure:
    """One number with its unit ("" for counts and bare ratios), and its target if it has one."""

    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    absent: str = ""

    @property
    def judged(self) -> bool:
        """Whether there is a target."""
        return self.at_most is not None or self.at_least is not None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or a value."""
        if self.value is None or not self.judged:
            return None
        low_enough = self.at_most is None or self.value <= self.at_most
        return low_enough and (self.at_least is None or self.value >= self.at_least)


def read(line: str) -> dict[str, Figure]:
    """The figures in a last line."""
    return {name: Figure(**figure) for name, figure in json.loads(line)["figures"].items()}


def figures_of(
    values: Mapping[str, float | None],
    units: Mapping[str, str],
    *,
    at_most: Mapping[str, float] = {},
    at_least: Mapping[str, float] = {},
    absent: Mapping[str, str] = {},
    quick: bool = False,
) -> dict[str, Figure]:
    """These values as figures, rounded to six digits.

    Units and targets go to every figure whose name matches the pattern (as in a shell), the first that does. A target
    for one name that has no value becomes a figure that is absent: for the reason in `absent`, which is by pattern too,
    or because the run was quick.

    Raises:
        ValueError: a figure without a unit, or without a value and a reason.
    """
    without = (target for target in (*at_most, *at_least) if "*" not in target and target not in values)
    figures = {}
    for key in (*values, *without):
        value, unit = values.get(key), _matching(units, key)
        reason = "" if value is not None else _matching(absent, key) or FULL_ONLY * quick
        if unit is None or (value is None and not reason):
            raise ValueError(f"figure {key!r} has no {'unit: add one' if unit is None else 'value: say why'}")
        rounded = value and float(f"{value:.6g}")
        figures[key] = Figure(rounded, unit, _matching(at_most, key), _matching(at_least, key), reason)
    return figures


def _matching(patterns: Mapping[str, V], key: str) -> V | None:
    return next((value for pattern, value in patterns.items() if fnmatchcase(key, pattern)), None)


def finish(values: Mapping[str, float | None], units: Mapping[str, str], **options: Any) -> None:
    """Print the figures, then the last line; `options` are those of `figures_of`."""
    figures = figures_of(values, units, **options)
    for name, figure in figures.items():
        print(f"{name:45} {figure.absent if figure.value is None else format(figure.value, '.4g')}")
    line = {"figures": {name: asdict(figure) for name, figure in figures.items()}}
    print(json.dumps(line, allow_nan=False))


def in_turn(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Wall and processor seconds of each step, [2, rounds]; all take turns, behind a round that warms up."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: np.array(seconds[1:]).T for name, seconds in taken.items()}


def arguments(doc: str | None, quick: str, **options: Mapping[str, Any]) -> argparse.Namespace:
    """What the command line of a script says: `--quick`, and `options` as `add_argument` takes them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    for name, settings in options.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()


class Clock:
    """Adds up the processor time of chosen calls: a small cost in a long step, which no ratio of steps resolves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, owner: Any, name: str) -> None:
        """Watch a function of a module, or a method of a class or object."""
        real: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return real(*arguments, **named)
            finally:
                self.seconds += time.process_time() - began

        setattr(owner, name, timed)


# A process starts with the peak memory of the one that it is forked from: this one is small.
METER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
with open(sys.argv[1], "wb") as output:
    done = subprocess.run(sys.argv[2:], stdout=output)
seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""
CPPO = ("-m", "cppo_lab.cli")


@dataclass(frozen=True)
class Taken:
    """What a process took: wall and processor seconds, its children's too, and the peak of its memory."""

    seconds: float
    cpu: float
    mebibytes: float
    output: str

    def json(self) -> Any:
        """What its last line says."""
        return json.loads(self.output.splitlines()[-1])


def fresh(words: Sequence[str], folder: Path, **variables: str) -> Taken:
    """Run a new Python process in `folder`, imports included; SystemExit if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    here = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    environment |= here | variables
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-c", METER, file.name, sys.executable, *words]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
        status, seconds, cpu, mebibytes = json.loads(done.stdout)
        output = Path(file.name).read_text()
    if status:
        raise SystemExit(f"{output[-2000:]}\n{' '.join(words)} ended with {status}")
    return Taken(seconds, cpu, mebibytes, output)


def limited(words: Sequence[str], limit: float, log: Path, grace: float, **options: Any) -> int | None:
    """Run a program for at most `limit` seconds, its output at the end of `log`; its exit code, None if it was ended.

    It is ended as ctrl-C does, after which servers are stopped and folders removed, and killed after `grace` seconds,
    with all that it has started.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_interruptible,
            **options,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _interruptible() -> None:
    """Let ctrl-C's signal through: a shell that starts something in the background lets it be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def nvidia(fields: str) -> list[str]:
    """A line for each GPU, as NVIDIA's own command has them: torch may be a build that sees none."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in said.splitlines() if line.strip()]
