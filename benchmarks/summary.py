"""`python -m benchmarks.summary [--quick] [NAME...]`: runs the benchmarks and writes docs/evidence/benchmarks.md.

With names only those are run, and the page goes to build/benchmarks, where each benchmark's output is too. The quick
form, which CI runs, only checks that each benchmark still works: its figures are rough, and it writes no page.
The exit code is 1 if a benchmark failed, whose output is then printed; a target that is missed is no failure.
"""

import argparse
import csv
import io
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.common import ROOT, Figure, Result, limited, nvidia, read
from cppo_lab.reports.figures.drawing import figure_style, save
from cppo_lab.rules import METHOD_COLOURS

LOGS = ROOT / "build" / "benchmarks"
DOCS = ROOT / "docs" / "evidence"
PICTURE = "pictures/benchmarks/targets.png"
OTHERS = ("common", "summary")  # no benchmarks
LIMITS = {"quick": 300.0, "full": 2400.0}  # seconds for each benchmark, on a machine that does other work too
GRACE_SECONDS = 60.0  # to stop the servers that a benchmark has started
PACKAGES = ("torch", "mlflow", "numpy", "pandas", "transformers", "verl")


@dataclass(frozen=True)
class Ran:
    """A benchmark that was run: its result, or `failure`, one line that says why there is none."""

    name: str
    command: str
    about: str  # the first sentence of its documentation
    seconds: float
    result: Result | None
    failure: str = ""

    def tally(self) -> str:
        """Its end in a few words."""
        if self.result is None:
            return f"failed: {self.failure}"
        if self.result.skipped:
            return f"cannot run here: {self.result.skipped}"
        judged = [figure for figure in self.figures().values() if figure.judged]
        measured = [figure for figure in judged if figure.met is not None]
        words = f"{sum(figure.met is True for figure in measured)} of {len(measured)} targets met"
        if len(measured) == len(judged):
            return words
        reasons = dict.fromkeys(figure.absent for figure in judged if figure.met is None)
        return f"{words}, {len(judged) - len(measured)} not measured: {'; '.join(reasons)}"

    def figures(self) -> Mapping[str, Figure]:
        """Its figures by name."""
        return self.result.figures if self.result else {}


def main(arguments: list[str] | None = None) -> int:
    """Runs them, writes the page, and returns the exit code."""
    folder = ROOT / "benchmarks"
    scripts = {path.stem: path for path in sorted(folder.glob("*.py")) if path.stem not in OTHERS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summary", description="Runs the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(scripts)}")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, no page: do they still work?")
    parser.add_argument("--limit", type=float, help="seconds for each (quick: 300, full: 2400)")
    parser.add_argument("--out", type=Path, help="folder of the page, its table and picture (docs/evidence)")
    options = parser.parse_args(arguments)
    if strangers := sorted(set(options.names) - set(scripts)):
        parser.error(f"no benchmark {strangers[0]!r}: there are {', '.join(scripts)}")
    chosen = [path for name, path in scripts.items() if not options.names or name in options.names]
    load = os.getloadavg()[0]  # processes that ran or waited for a processor, mean over the last minute
    LOGS.mkdir(parents=True, exist_ok=True)
    all_ran = []
    for number, script in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {script.stem} ... ", end="", flush=True)
        ran = run(script, options.quick, options.limit or LIMITS["quick" if options.quick else "full"])
        print(f"{ran.seconds:.0f} s: {ran.tally()}", flush=True)
        all_ran.append(ran)
    failed = [ran.name for ran in all_ran if ran.result is None]
    for name in failed:
        print(f"\n{LOGS / name}.log, the output of {name}, which failed:")
        print((LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace"), flush=True)
    if not options.quick:
        print(write(all_ran, load, options.out or (LOGS if options.names else DOCS)))
    print(f"{len(all_ran)} benchmarks" + (f", failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def run(script: Path, quick: bool, limit: float) -> Ran:
    """Run `script` for at most `limit` seconds; what it prints goes to LOGS. Never raises for what it does."""
    words = [f"{script.parent.name}/{script.name}", *(["--quick"] if quick else [])]
    about = script.read_text(encoding="utf-8").split('"""')[1].split("\n\n")[0].replace("\n", " ").strip()
    log, start = LOGS / f"{script.stem}.log", time.monotonic()
    log.write_bytes(b"")
    code = limited([sys.executable, str(script), *words[1:]], limit, log, GRACE_SECONDS)
    seconds = time.monotonic() - start
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()] or [""]
    result, failure = None, ""
    if code is None:
        failure = f"it took longer than {limit:.0f} s and was ended"
    elif code:
        failure = f"it ended with exit code {code}: {lines[-1].strip():.200}"
    else:
        try:
            result = read(lines[-1])
        except ValueError as error:
            failure = str(error)
    return Ran(script.stem, f"python {' '.join(words)}", about, seconds, result, failure)


def write(ran: Sequence[Ran], load: float, out: Path) -> Path:
    """Write the page, its table and its picture into `out`; the page's path."""
    times = multiples(ran)
    if times:
        (out / PICTURE).parent.mkdir(parents=True, exist_ok=True)
        (out / PICTURE).write_bytes(drawn(times))
    about, date = machine() | versions(), datetime.now(UTC).strftime("%Y-%m-%d")
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmarks.md").write_text(
        page(ran, load, date, about, PICTURE if times else ""), encoding="utf-8"
    )
    (out / "benchmarks.csv").write_text(table(ran), encoding="utf-8")
    return out / "benchmarks.md"


def page(ran: Sequence[Ran], load: float, date: str, about: Mapping[str, str], picture: str) -> str:
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
    if picture:
        lines.append(
            f"![Each figure as a multiple of its target; left of the line it is missed.]({picture})\n"
        )
    rows = [(f"`{one.command}`", one.about, one.tally(), f"{one.seconds:.0f} s") for one in ran]
    lines += _table(("Benchmark", "What it measures", "Targets", "Time"), rows)
    missed = [
        (one.name, f"`{name}`", _value(figure), _target(figure))
        for one in ran
        for name, figure in one.figures().items()
        if figure.met is False
    ]
    if missed:
        lines += _table(("Missed by", "Figure", "Measured", "Target"), missed)
    return "\n".join(lines).rstrip() + "\n"


def table(ran: Iterable[Ran]) -> str:
    """Every figure as CSV, also those without a target and those that were not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("benchmark", "figure", "measured", "target", "met"))
    for one in ran:
        for name, figure in one.figures().items():
            met = {True: "met", False: "not met", None: ""}[figure.met]
            writer.writerow((one.name, name, _value(figure), _target(figure), met))
    return text.getvalue()


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
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"
    yield ""


def _cell(text: str) -> str:
    """A text that stays in its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def machine() -> dict[str, str]:
    """Processor, threads, memory, GPUs and operating system, each in words."""
    processor = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return {
        "Processor": processor[1] if processor else platform.machine(),
        "Threads": str(len(os.sched_getaffinity(0))),
        "Memory": f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "unknown",
        "GPU": ", ".join(nvidia("name,memory.total")) or "none",
        "System": f"{platform.system()} {platform.release()} on {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide the figures."""
    installed = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def multiples(ran: Sequence[Ran]) -> dict[str, float]:
    """How many times better each figure is than it must be, by name; below 1 the target is missed."""
    times = {}
    for one in ran:
        for name, figure in one.figures().items():
            if figure.value is not None and figure.value > 0:
                if figure.at_most is not None:
                    times[f"{one.name}: {name}"] = figure.at_most / figure.value
                elif figure.at_least is not None:
                    times[f"{one.name}: {name}"] = figure.value / figure.at_least
    return times


def drawn(times: Mapping[str, float]) -> bytes:
    """A PNG with one bar for each figure, from the target outwards, on a logarithmic axis."""
    places = range(len(times), 0, -1)
    colours = [METHOD_COLOURS["cppo" if value >= 1 else "dppo"] for value in times.values()]
    with figure_style():
        drawing = Drawing(figsize=(8.0, 1.0 + 0.2 * len(times)), layout="constrained")
        ax = drawing.subplots()
        ax.barh(places, [value - 1 for value in times.values()], left=1.0, color=colours, height=0.62)
        ax.set_xscale("log")
        ax.set_xlim(min(0.5, *times.values()) / 1.2, max(2.0, *times.values()) * 1.8)
        for place, value in zip(places, times.values(), strict=True):
            text = f" {number(float(f'{value:.2g}'))}x"
            ax.annotate(text, (max(value, 1.0), place), va="center", fontsize=7.5)
        ax.axvline(1.0, color="#222222", linewidth=1.0)
        ax.set_yticks(list(places), list(times), fontsize=7.5)
        ax.set_ylim(0.3, len(times) + 0.7)
        ax.grid(visible=False, axis="y")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{number(value)}x"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("times better than the target (1x: just met)")
        return save(drawing, "png", {"Software": None}, 110)


if __name__ == "__main__":
    sys.exit(main())
