"""`python -m benchmarks.summary [--quick] [NAME...]`: runs the benchmarks and writes docs/evidence/benchmarks.md.

With names only those are run, and the page goes to build/benchmarks, where each benchmark's output is too. The quick
form, which CI runs, only checks that each benchmark still works: its figures are rough, and it writes no page.
The exit code is 1 if a benchmark failed, whose output is then printed; a target that is missed is no failure.
"""

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.summary.machine import load, machine, versions
from benchmarks.summary.page import Measured, page, table, tally
from benchmarks.summary.plots import drawings
from benchmarks.summary.running import Ran, run

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "build" / "benchmarks"
DOCS = ROOT / "docs" / "evidence"
PICTURES = "pictures/benchmarks"
LIMITS = {"quick": 300.0, "full": 2400.0}  # seconds for each benchmark, on a machine that does other work too


def main(arguments: list[str] | None = None) -> int:
    """Runs them, writes the page, and returns the exit code."""
    scripts = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py"))}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.summary",
        description="Runs the benchmarks and writes docs/evidence/benchmarks.md.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(scripts)}")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, no page: do they still work?")
    parser.add_argument("--limit", type=float, help="seconds for each (quick: 300, full: 2400)")
    parser.add_argument(
        "--out", type=Path, help="folder of benchmarks.md, benchmarks.csv and the pictures (docs/evidence)"
    )
    options = parser.parse_args(arguments)
    if strangers := set(options.names) - set(scripts):
        parser.error(f"no benchmark {sorted(strangers)[0]!r}: there are {', '.join(scripts)}")
    wanted = {name: path for name, path in scripts.items() if not options.names or name in options.names}
    limit = options.limit or LIMITS["quick" if options.quick else "full"]
    busy = load()
    ran = all_of(wanted, options.quick, limit)
    failed = [one.name for one in ran if one.result is None]
    for name in failed:
        print(f"\n{LOGS / name}.log, the output of {name}, which failed:")
        print((LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace"), flush=True)
    if not options.quick:
        print(write(ran, busy, options.out or (LOGS if options.names else DOCS)))
    print(f"{len(ran)} benchmarks" + (f", failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def write(ran: list[Ran], busy: float, out: Path) -> Path:
    """Write the page and its pictures into `out`; the page's path. `busy`: the load before the first one began."""
    results = [one.result for one in ran if one.result is not None]
    pictures = drawings(results)
    folder = out / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path.name for path in folder.glob("*.png")} - set(pictures):
        (folder / stale).unlink()
    for name, (_, content) in pictures.items():
        (folder / name).write_bytes(content)
    links = {f"{PICTURES}/{name}": text for name, (text, _) in pictures.items()}
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    measured = Measured(date, machine(), versions(), busy, ran, links)
    (out / "benchmarks.md").write_text(page(measured), encoding="utf-8")
    (out / "benchmarks.csv").write_text(table(ran), encoding="utf-8")
    return out / "benchmarks.md"


def all_of(scripts: dict[str, Path], quick: bool, limit: float) -> list[Ran]:
    """Run them one after the other, each with a line of progress."""
    LOGS.mkdir(parents=True, exist_ok=True)
    ran = []
    for number, (name, script) in enumerate(scripts.items(), 1):
        print(f"[{number}/{len(scripts)}] {name} ... ", end="", flush=True)
        began = time.monotonic()
        ran.append(run(script, quick, limit, LOGS / f"{name}.log"))
        print(f"{time.monotonic() - began:.0f} s: {tally(ran[-1])}", flush=True)
    return ran


if __name__ == "__main__":
    sys.exit(main())
