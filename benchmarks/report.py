"""Time to build the paper's reports.

Every step is a new Python process in a temporary folder, so imports and the creation of the database count. Times are
wall seconds (the median of the repeats); `_cpu_` figures are processor seconds, which say more on a machine that does
other work. benchmarks/scale.py has the report of a sweep of 10,000 runs.

report_seconds           `cppo report study --from paper`
report_main_seconds      `cppo report main --from paper`

    python benchmarks/report.py [--quick]

The last line is JSON, see `common.py`.
"""

import tempfile
from pathlib import Path

import pandas as pd
from common import CPPO, arguments, finish, fresh

TARGETS = {"report_seconds": 15.0}
UNITS = {"*seconds": "s", "*mebibytes": "MiB"}


def paper(folder: Path, quick: bool) -> dict[str, float]:
    """One round of the paper's reports; the quick form has that of `main` alone."""
    folder.mkdir()
    steps = {"reference_import": ["reference", "import"], "report": ["report", "study", "--from", "paper"]}
    figures: dict[str, float] = {}
    for name, words in (steps | {"report_main": ["report", "main", "--from", "paper"]}).items():
        if not (quick and name == "report"):
            taken = fresh([*CPPO, *words], folder)
            figures |= {f"{name}_seconds": taken.seconds, f"{name}_cpu_seconds": taken.cpu}
    files = [file for file in (folder / "reports" / "build").glob("*/*") if file.is_file()]
    return figures | {"report_mebibytes": sum(file.stat().st_size for file in files) / 2**20}


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "one report instead of three rounds").quick
    with tempfile.TemporaryDirectory() as name:
        rounds = [paper(Path(name, str(number)), quick) for number in range(1 if quick else 3)]
    figures = {str(key): float(value) for key, value in pd.DataFrame(rounds).median().items()}
    finish("report", figures, UNITS, at_most=TARGETS, quick=quick)


if __name__ == "__main__":
    main()
