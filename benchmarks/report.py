"""How long the paper's report takes from nothing: reference import, then tables, figures and page.

Every step is a new Python process in a temporary folder, so imports and the creation of the database count.

    python benchmarks/report.py [--quick]

The last line is JSON: {"name", "figures", "targets", "met"}; times are wall seconds (the median of the
repeats).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPORT_SECONDS = 20.0
_URI = "sqlite:///mlflow.db"
_IMPORT = f"from cppo_lab.tracking.reference import import_reference; import_reference({_URI!r})"
_REPORT = (
    "from pathlib import Path; from cppo_lab.reports.build import build_report, paper_request; "
    f"build_report(paper_request({_URI!r}, Path('report')))"
)


def timed(code: str, folder: Path) -> float:
    """Wall seconds of a new Python process that runs `code` in `folder`."""
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)
    return time.perf_counter() - start


def measure(repeats: int) -> dict[str, float]:
    """The median times over `repeats` fresh folders, and how large the report is."""
    imports, reports, again, size = [], [], [], 0
    for number in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            imports.append(timed(_IMPORT, folder))
            reports.append(timed(_REPORT, folder))
            again.append(timed(_IMPORT, folder))
            size = sum(file.stat().st_size for file in (folder / "report").iterdir())
        print(f"{number + 1}/{repeats}: import {imports[-1]:.1f} s, report {reports[-1]:.1f} s", flush=True)
    return {
        "reference_import_seconds": round(statistics.median(imports), 2),
        "second_import_seconds": round(statistics.median(again), 2),
        "report_seconds": round(statistics.median(reports), 2),
        "report_mebibytes": round(size / 2**20, 2),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="once instead of three times (under a minute)")
    figures = measure(1 if parser.parse_args().quick else 3)
    targets = {"report_seconds": REPORT_SECONDS}
    met = figures["report_seconds"] <= REPORT_SECONDS
    print(json.dumps({"name": "report", "figures": figures, "targets": targets, "met": met}))


if __name__ == "__main__":
    main()
