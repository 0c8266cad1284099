"""Time to build the paper's reports.

`report_seconds` is `cppo report study --from paper`, in the quick form `report_main_seconds` that of `main`: wall
seconds of a new Python process in a temporary folder, so imports count (the median of three). benchmarks/scale.py has
the report of a sweep of 10,000 runs.

    python benchmarks/report.py [--quick]

The last line is JSON, see `common.py`.
"""

import tempfile
from pathlib import Path
from statistics import median

from common import CPPO, arguments, finish, fresh


def seconds(sweep: str, folder: Path) -> float:
    """Of a report, in a folder of its own, into whose store the paper's curves come first."""
    folder.mkdir()
    fresh([*CPPO, "reference", "import"], folder)
    return fresh([*CPPO, "report", sweep, "--from", "paper"], folder).seconds


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "one report of `main` instead of three of `study`").quick
    figure, sweep, rounds = ("report_main_seconds", "main", 1) if quick else ("report_seconds", "study", 3)
    with tempfile.TemporaryDirectory() as name:
        figures = {figure: median(seconds(sweep, Path(name, str(number))) for number in range(rounds))}
    finish(figures, {"*": "s"}, at_most={"report_seconds": 15.0}, quick=quick)


if __name__ == "__main__":
    main()
