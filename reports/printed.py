"""The paper's printed numbers, from the files in `reports/paper/`, which are part of the wheel; and Tables 2 and 3: how
the rules differ, and the configuration of each model.
"""

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.errors import UserError
from cppo_lab.reports.names import ABSENT, OURS, display_name, origin
from cppo_lab.reports.tables import TextRow, TextTable, core_of
from cppo_lab.rules import RULES, Rule, known


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


Params = Mapping[str, str]


def _updates(params: Params) -> str | None:
    try:
        return str(int(params["batch.prompts"]) // int(params["batch.minibatch_prompts"]))
    except (KeyError, ValueError, ZeroDivisionError):
        return None


def _logged(key: str) -> Callable[[Params], str | None]:
    return lambda params: params.get(key)


# The paper's columns (as in `paper/table_config.csv`), then ours. Keys are those of the logged configuration.
COLUMNS: tuple[tuple[str, Callable[[Params], str | None]], ...] = (
    ("Prompts", _logged("batch.prompts")),
    ("n", _logged("batch.responses")),
    ("Minibatch", _logged("batch.minibatch_prompts")),
    ("Updates", _updates),
    ("T_max", _logged("rollout.max_response_length")),
    ("delta", _logged("rule.delta")),
    ("delta_b_min", _logged("rule.delta_b")),
    ("w_min", _logged("rule.w_min")),
    ("Learning rate", _logged("optim.learning_rate")),
    ("T_stop", _logged("training.t_stop")),
)
_PRINTED = ("prompts", "n", "minibatch", "updates", "t_max", "delta", "delta_b_min", "w_min")


def configuration_table(board: Scoreboard, models: Sequence[str], title: str) -> TextTable:
    """One row per model; if its runs differ in a value, all values are listed."""
    core = core_of(board)
    if core == schema.PAPER:
        printed = {
            row["model"]: tuple(row[name] for name in _PRINTED) for row in printed_table("table_config")
        }
        headings = tuple(heading for heading, _ in COLUMNS[: len(_PRINTED)])
        rows = [TextRow(model, False, printed[model]) for model in models if model in printed]
        return TextTable(title, "Model", headings, rows, ("As printed in the paper's Table 3.",), core)
    rows = []
    for model in models:
        runs = board.runs_of(model, OURS)
        logged = [board.data.params.get(run.mlflow_id or "", {}) for run in runs if run.mlflow_id]
        # In the order of the runs.
        values = (
            dict.fromkeys(value for params in logged if (value := read(params)) is not None)
            for _, read in COLUMNS
        )
        rows.append(TextRow(model, False, tuple(" / ".join(each) or ABSENT for each in values)))
    notes = (
        f"Source: {origin(core)}.",
        f"As logged by the runs of {display_name(OURS)}. Prompts and Minibatch count prompts, n responses per prompt, "
        "T_max tokens. delta_b_min is the rate itself where the budget is fixed.",
    )
    return TextTable(title, "Model", [heading for heading, _ in COLUMNS], rows, notes, core)


HEADINGS = ("Bounds", "Decides per", "Position", "Prefix", "Beyond it", "In this study")
YES, NO, UNKNOWN = "yes", "no", "–"


def comparison_table(title: str, used: Collection[str]) -> TextTable:
    """All built-in rules, and the others in `used`, the rules of the report's runs."""
    others = sorted(set(used) - set(RULES))
    rows = []
    for name in (*RULES, *others):
        rule = known(name)
        cells = rule.row.cells if isinstance(rule, Rule) and rule.row is not None else (UNKNOWN,) * 5
        rows.append(TextRow(display_name(name), name == OURS, (*cells, YES if name in used else NO)))
    notes = (
        "Position, Prefix: whether the limit of a token depends on its position, and on the tokens before it.",
        "Beyond it: masked, no objective; clipped, no gradient; capped, the coefficient stops growing and the "
        "token keeps its gradient; weighed less, the weight falls below 1.",
    )
    return TextTable(title, "Rule", HEADINGS, rows, notes)
