"""The paper's printed tables and ablation curves, from the files in `reports/paper/`, which are part of the wheel."""

import csv
import io
from importlib import resources

import pandas as pd

from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.errors import UserError


def printed_table(name: str) -> list[dict[str, str]]:
    """The rows of `reports/paper/<name>.csv` as printed, every value as text.

    Raises UserError if the file is damaged.
    """
    place = resources.files("cppo_lab.reports").joinpath("paper", f"{name}.csv")
    try:
        rows: list[dict[str, str]] = list(csv.DictReader(io.StringIO(place.read_text(encoding="utf-8"))))
    except (OSError, ValueError, csv.Error) as error:
        raise _damaged(name, str(error)) from None
    if not rows or any(None in row or None in row.values() for row in rows):
        raise _damaged(name, "rows of other lengths than its first line")
    return rows


def _damaged(name: str, why: str) -> UserError:
    return UserError(
        f"the paper's numbers in reports/paper/{name}.csv are damaged ({why}): install the package again"
    )


def main_grid() -> tuple[ExpectedRun, ...]:
    """The runs behind the paper's Tables 1 and 4, in the order of Table 4. The paper gives no seeds."""
    return tuple(ExpectedRun(None, row["model"], row["method"], None) for row in printed_table("table_full"))


def ablation_curves() -> pd.DataFrame:
    """The ablation panels: columns ablation, model, variant, step, value (mean Avg@16 as a fraction)."""
    frame = pd.DataFrame(printed_table("ablation_curves"))
    frame = frame.rename(columns={"aime24_25_26_avg_at_16": "value"})
    return frame.astype({"step": "int64", "value": "float64"})
