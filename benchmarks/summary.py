"""`python -m benchmarks.summary [--quick] [NAME...]`: runs the benchmarks and writes docs/evidence/benchmarks.md.

With names only those are run, and the page goes to build/benchmarks, where each benchmark's output is too. The quick
form, which CI runs, only checks that each benchmark still works: its figures are rough, and it writes no page.
The exit code is 1 if a benchmark failed, whose output is then printed; a target that is missed is no failure.
"""

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from benchmarks.common import ROOT, Figure, limited, nvidia, read

LOGS = ROOT / "build" / "benchmarks"
DOCS = ROOT / "docs" / "evidence"
OTHERS = ("common", "summary")  # no benchmarks
# Seconds for each benchmark, on a machine that does other work too. `scale` sends 10,000 runs to MLflow: over an hour.
LIMIT, QUICK_LIMIT = 9000.0, 300.0
GRACE_SECONDS = 60.0  # to stop the servers that a benchmark has started
PACKAGES = ("torch", "mlflow", "numpy", "pandas", "transformers", "verl")


@dataclass(frozen=True)
class Ran:
    """A benchmark that was run: its figures, or `failure`, one line that says why there are none."""

    name: str
    about: str  # the first paragraph of its documentation
    seconds: float
    figures: Mapping[str, Figure]
    failure: str = ""

    def tally(self) -> str:
        """Its end in a few words."""
        if self.failure:
            return f"failed: {self.failure}"
        met = [figure.met for figure in self.figures.values() if figure.judged]
        words = f"{met.count(True)} of {len(met) - met.count(None)} targets met"
        absent = dict.fromkeys(
            figure.absent for figure in self.figures.values() if figure.judged and figure.absent
        )
        return words + (f", {met.count(None)} not measured: {'; '.join(absent)}" if absent else "")


def main(arguments: list[str] | None = None) -> int:
    """Runs them, writes the page, and returns the exit code."""
    folder = ROOT / "benchmarks"
    scripts = {path.stem: path for path in sorted(folder.glob("*.py")) if path.stem not in OTHERS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summary", description="Runs the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(scripts)}")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, no page: do they still work?")
    options = parser.parse_args(arguments)
    if not scripts.keys() >= {*options.names}:
        parser.error(f"the benchmarks are {', '.join(scripts)}")
    load = os.getloadavg()[0]  # processes that ran or waited for a processor, mean over the last minute
    LOGS.mkdir(parents=True, exist_ok=True)
    all_ran = []
    for number, name in enumerate(names := options.names or [*scripts], 1):
        print(f"[{number}/{len(names)}] {name} ... ", end="", flush=True)
        ran = run(scripts[name], options.quick)
        print(f"{ran.seconds:.0f} s: {ran.tally()}", flush=True)
        all_ran.append(ran)
    failed = [ran.name for ran in all_ran if ran.failure]
    for name in failed:
        print(f"\n{LOGS / name}.log, the output of {name}, which failed:")
        print((LOGS / f"{name}.log").read_text(errors="replace"), flush=True)
    if not options.quick:
        out = LOGS if options.names else DOCS
        out.mkdir(parents=True, exist_ok=True)
        (out / "benchmarks.csv").write_text(table(all_ran))
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        (out / "benchmarks.md").write_text(page(all_ran, load, date, machine()))
        print(out / "benchmarks.md")
    print(f"{len(all_ran)} benchmarks" + (f", failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def run(script: Path, quick: bool) -> Ran:
    """Run `script` within its limit; what it prints goes to LOGS. Never raises for what it does."""
    words = [str(script), *(["--quick"] if quick else [])]
    about = " ".join(script.read_text().split('"""')[1].split("\n\n")[0].split())
    limit = QUICK_LIMIT if quick else LIMIT
    log, start = LOGS / f"{script.stem}.log", time.monotonic()
    log.write_text("")
    code = limited([sys.executable, *words], limit, log, GRACE_SECONDS)
    seconds = time.monotonic() - start
    last = log.read_text(errors="replace").strip().split("\n")[-1]
    figures, failure = {}, ""
    if code is None:
        failure = f"it took longer than {limit:.0f} s and was ended"
    elif code:
        failure = f"it ended with exit code {code}: {last.strip():.200}"
    else:
        try:
            figures = read(last)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            failure = f"not a benchmark's last line ({error!r:.80}): {last:.120}"
    return Ran(script.stem, about, seconds, figures, failure)


def page(ran: Sequence[Ran], load: float, date: str, about: Mapping[str, str]) -> str:
    """The page in Markdown. `load` is the machine's before the first benchmark began."""
    lines = [
        "# Benchmarks\n",
        f"Generated by `make bench`, which runs every script under `benchmarks/`, on {date}. Do not edit.",
        "Here are the targets that are missed; every figure: [benchmarks.csv](benchmarks.csv).\n",
    ]
    threads = float(about["Threads"])
    if load > 0.75 * threads:
        lines.append(
            f"**A loaded machine**: before the first benchmark began, {load:.1f} processes wanted its {threads:.0f} "
            "threads. Times are too long; ratios taken in turn suffer less.\n"
        )
    lines.append("; ".join(f"{name}: {_cell(text)}" for name, text in about.items()) + "\n")
    rows = [
        (f"`python benchmarks/{each.name}.py`", each.about, each.tally(), f"{each.seconds:.0f} s")
        for each in ran
    ]
    lines += _table(("Benchmark", "What it measures", "Targets", "Time"), rows)
    missed = [
        (each.name, f"`{name}`", _value(figure), _target(figure))
        for each in ran
        for name, figure in each.figures.items()
        if figure.met is False
    ]
    if missed:
        lines += _table(("Missed by", "Figure", "Measured", "Target"), missed)
    return "\n".join(lines).rstrip() + "\n"


def table(ran: Iterable[Ran]) -> str:
    """Every figure as CSV, also those without a target and those that were not measured."""
    words = {True: "met", False: "not met", None: ""}
    rows = [
        (each.name, name, _value(figure), _target(figure), words[figure.met])
        for each in ran
        for name, figure in each.figures.items()
    ]
    columns = ("benchmark", "figure", "measured", "target", "met")
    return str(pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n"))


def number(value: float) -> str:
    """At least four digits; an exponent only for the very large and the very small."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _value(figure: Figure) -> str:
    if figure.value is None:
        return "not measured: " + figure.absent
    return f"{number(figure.value)} {figure.unit}".strip()


def _target(figure: Figure) -> str:
    ends = (("at most", figure.at_most), ("at least", figure.at_least))
    return " and ".join(
        f"{word} {number(end)} {figure.unit}".strip() for word, end in ends if end is not None
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _cell(text: str) -> str:
    """A text that stays in its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def machine() -> dict[str, str]:
    """Processor, threads, memory, GPUs, operating system, and the versions that decide the figures, each in words."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    about = {
        "Processor": processor[1] if processor else platform.machine(),
        "Threads": str(len(os.sched_getaffinity(0))),
        "Memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "GPU": ", ".join(nvidia("name,memory.total")) or "none",
        "System": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "Python": platform.python_version(),
    }
    return about | {name: metadata.version(name) for name in PACKAGES if find_spec(name)}


if __name__ == "__main__":
    sys.exit(main())
