"""`cppo_lab.load`: loads the results of a sweep by name."""

from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import UserError, unknown
from cppo_lab.files import redacted
from cppo_lab.notebook.declared import declared_runs, override_text
from cppo_lab.notebook.paper import PaperSource, paper_runs
from cppo_lab.notebook.results import Results
from cppo_lab.sweep.file import Search, load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking import address

RUNS, PAPER = "runs", "paper"


def load(
    sweep: str | Path,
    *overrides: str,
    uri: str | Path | None = None,
    source: str = RUNS,
    **values: Any,
) -> Results:
    """The results of a sweep or study as tidy pandas frames.

    Args:
        sweep: name of a shipped sweep or study, or path to a sweep file.
        overrides: as on the command line: "core=verl", "rule.w_min=0.6,0.8". They choose the runs, as in `cppo launch`.
        uri: the tracking store, as a URI or as the path of a SQLite file. Default: MLFLOW_TRACKING_URI, else
            `tracking.uri` of the configuration, else sqlite:///mlflow.db in the working folder.
        source: "runs" for your own runs, "paper" for the paper's curves, which come with this package (sweep: "main",
            an ablation, or "study" for all; without overrides and uri).
        values: overrides as keyword arguments; a sequence is several values: seed=[0, 1], model="mini_base",
            **{"rule.w_min": 0.8}.

    Returns:
        The current state of the store. `runs` is read now, `history` and `outcomes` when they are called.

    Raises:
        UserError: an unknown sweep, override or source; a store that is missing, cannot be read or has none of the
        runs.
    """
    texts = [*overrides, *(override_text(key, value) for key, value in values.items())]
    name = str(sweep)
    if source == PAPER:
        _refuse_for_paper(texts, uri)
        return Results(name, "the paper's curves", paper_runs(name), PaperSource())
    if source != RUNS:
        raise unknown("source", source, [RUNS, PAPER])
    from cppo_lab.analysis.run_source import (
        StoreSource,
    )  # imports MLflow, which the paper's curves do without

    declared = load_sweep(name)
    if isinstance(declared, Search):
        raise UserError(
            f"{declared.name} is a search, whose trials are no grid: see `cppo report {declared.name}`, or load "
            "a sweep"
        )
    plan = make_plan(declared, texts)
    store = _store(uri, plan.tracking.uri)
    experiment = schema.experiment_name(plan.core)
    found = Results(
        plan.name,
        f"experiment {experiment} of {redacted(store)}",
        declared_runs(plan, texts),
        StoreSource(store, experiment),
    )
    if (found.runs["state"] == schema.MISSING).all():
        command = " ".join(["cppo launch", name, *texts])
        raise UserError(
            f"experiment {experiment!r} of {redacted(store)} has none of the {len(plan.runs)} runs of {plan.name}: "
            f"train them with `{command}`, or name the store that has them: uri="
        )
    return found


def _store(uri: str | Path | None, configured: str | None) -> str:
    """The store to read: `uri`, or the store that commands would use."""
    if uri is None:
        return address.tracking_uri(configured)
    path = isinstance(uri, Path) or (":" not in uri and uri.endswith(".db"))
    with address.in_the_environment(f"sqlite:///{uri}" if path else str(uri)):
        return address.tracking_uri()


def _refuse_for_paper(texts: list[str], uri: object) -> None:
    if texts:
        raise UserError(f"source='paper' with {' '.join(texts)!r}: its curves take no overrides; remove them")
    if uri is not None:
        raise UserError(
            "source='paper' with uri=: its curves come with this package, from no store; remove it"
        )
