"""Table 3: the configuration of each model, as logged by its CPPO runs."""

from collections.abc import Callable, Mapping, Sequence

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.study import OURS, runs_of
from cppo_lab.reports.audit_view import ABSENT
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.printed import printed_table
from cppo_lab.reports.tables import core_of
from cppo_lab.reports.text_tables import TextRow, TextTable

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
        return TextTable(title, core, "Model", headings, tuple(rows), ("As printed in the paper's Table 3.",))
    rows = []
    for model in models:
        runs = runs_of(board, model, OURS)
        logged = [board.data.params.get(run.mlflow_id or "", {}) for run in runs if run.mlflow_id]
        rows.append(TextRow(model, False, tuple(_value(read, logged) for _, read in COLUMNS)))
    notes = (
        f"Source: {origin(core)}.",
        f"As logged by the runs of {display_name(OURS)}. Prompts and Minibatch count prompts, n responses per prompt, "
        "T_max tokens. delta_b_min is the rate itself where the budget is fixed.",
    )
    return TextTable(title, core, "Model", tuple(heading for heading, _ in COLUMNS), tuple(rows), notes)


def _value(read: Callable[[Params], str | None], logged: Sequence[Params]) -> str:
    found = dict.fromkeys(value for params in logged if (value := read(params)) is not None)
    return " / ".join(found) or ABSENT
