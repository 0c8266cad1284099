"""Reads and scores several sweeps together, and assigns models their roles in the paper's figures; with the diagnostic
files of runs that these figures show.

`diagnostics/positions.json` has the gap between the policies at each token position, `diagnostics/window.json` a
response under CPPO's two tests. Both are validated: a malformed file is an error.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pandas as pd
import pydantic.dataclasses as checked
from pydantic import BeforeValidator, Field, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from cppo_lab import schema
from cppo_lab.analysis.inputs import SweepGrid, is_result
from cppo_lab.analysis.reader import list_runs, read_sweep
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.estimate import Band, band
from cppo_lab.analysis.statistics.verdicts import LENGTH, score_claimed
from cppo_lab.errors import StoreAway, UserError, first_fault
from cppo_lab.rules import position_weight
from cppo_lab.tracking import address
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.read import StoredFiles, reading

MAIN = "main"
# The paper's four models in its order: Qwen3-1.7B (post-trained), 1.7B-Base, 8B-Base, 30B-A3B-Base. A study's models
# take these roles in the order in which its main sweep declares them.
ROLES = 4
OURS, COMPARED = "cppo", "dppo"
LARGEST = 5_000_000  # bytes of a diagnostic file; a run writes some kilobytes

# A position that no response reached has no gap: it is null or NaN.
Gap = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


def _of_one_length(record: Any) -> None:
    """Raises ValueError if the lists of a record differ in length."""
    lengths = {name: len(value) for name, value in vars(record).items() if isinstance(value, tuple)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"lists of different lengths: {lengths}")


@checked.dataclass(frozen=True)
class PositionGaps:
    """|pi(y_t) - mu(y_t)| by token position 1..T of a run: `mean`, and the mean `top10` of the largest tenth.

    `tokens`: how many tokens each position has; the gap is NaN where there is none. `w_min` and `delta` are the rule's
    constants, None if it has none. `span` is T of the position weight if that is the padded width, else None.
    """

    positions: Annotated[tuple[NonNegativeInt, ...], Field(alias="position")]
    tokens: tuple[NonNegativeInt, ...]
    mean: Annotated[tuple[Gap, ...], Field(alias="gap_mean")]
    top10: Annotated[tuple[Gap, ...], Field(alias="gap_top10")]
    w_min: FiniteFloat | None = None
    delta: FiniteFloat | None = None
    span: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what does not fit together."""
        _of_one_length(self)
        if self.positions != tuple(range(1, len(self.positions) + 1)):
            raise ValueError("positions other than 1, 2, 3, ...")
        gaps = zip(self.tokens, self.mean, self.top10, strict=True)
        if any(seen and not math.isfinite(mean + top) for seen, mean, top in gaps):
            raise ValueError("no gap at a position that has tokens")


@checked.dataclass(frozen=True)
class TokenWindow:
    """A response under CPPO, with a value per token: w_t D_t, the two thresholds it is compared with (the second is
    infinite where the rule has no budget), whether the token moves pi away from mu, and what masked it (empty if it was
    kept).
    """

    step: NonNegativeInt
    symbols: Annotated[tuple[str, ...], Field(min_length=1)]
    weighted_divergence: tuple[FiniteFloat, ...]
    token_threshold: FiniteFloat
    prefix_threshold: tuple[Annotated[float, Field(gt=-math.inf)], ...]
    moves_away: tuple[bool, ...]
    masked_by: tuple[Literal["", "token", "prefix"], ...]

    def __post_init__(self) -> None:
        _of_one_length(self)

    def effective(self) -> tuple[float, ...]:
        """c_t, the lower of the two thresholds."""
        return tuple(min(self.token_threshold, value) for value in self.prefix_threshold)

    def cut(self, width: int) -> "TokenWindow":
        """The most instructive `width` consecutive tokens. Preferred, in this order: both kinds of masking; masked
        tokens together with kept ones that also move away; the most masked tokens; the earliest.
        """
        last = max(0, len(self.symbols) - width)

        def worth(start: int) -> tuple[int, int, int, int]:
            cut = slice(start, start + width)
            away = sum(self.moves_away[cut])
            masked = [reason for reason in self.masked_by[cut] if reason]
            return len(set(masked)), min(len(masked), away - len(masked)), len(masked), -start

        start = max(range(last + 1), key=worth)
        cut = slice(start, start + width)
        lists: dict[str, Any] = {
            name: value[cut] for name, value in vars(self).items() if isinstance(value, tuple)
        }
        return replace(self, **lists)


def read_positions(uri: str, mlflow_ids: Iterable[str]) -> dict[str, PositionGaps]:
    """`diagnostics/positions.json` of the runs that have this file, with tokens in it.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    gaps_of = _read(uri, mlflow_ids, "positions.json", PositionGaps)
    return {mlflow_id: gaps for mlflow_id, gaps in gaps_of.items() if gaps.positions}


def read_windows(uri: str, mlflow_ids: Iterable[str]) -> dict[str, TokenWindow]:
    """`diagnostics/window.json` of the runs that have this file. Raises as `read_positions`."""
    return _read(uri, mlflow_ids, "window.json", TokenWindow)


Diagnostics = TypeVar("Diagnostics", PositionGaps, TokenWindow)


def _read(uri: str, mlflow_ids: Iterable[str], name: str, kind: type[Diagnostics]) -> dict[str, Diagnostics]:
    address.require_store(uri)
    path, records = f"diagnostics/{name}", {}
    with reading(uri) as client:
        for mlflow_id in mlflow_ids:
            content = StoredFiles(client, mlflow_id).content(path, LARGEST)
            if content is not None:
                text = content.decode("utf-8", errors="replace")
                records[mlflow_id] = parse_diagnostics(kind, text, f"{path} of MLflow run {mlflow_id}")
    return records


def parse_diagnostics(kind: type[Diagnostics], content: str | bytes, what: str) -> Diagnostics:
    """The content of the file `what`. Raises UserError if it is invalid."""
    try:
        return TypeAdapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        raise UserError(
            f"{what} {first_fault(error.errors())}: the run was recorded by other code than this; run it again, or "
            "delete it"
        ) from None


# The gaps over several seeds, and the threshold that position weights induce.

_BINS = 60  # points per line at most
_FEWEST = 20  # tokens per point at least; with fewer, a point would show the few longest responses, not the position


@dataclass(frozen=True)
class GapCurve(Band):
    """A gap by token position, for each bin of neighbouring `positions`."""

    positions: tuple[float, ...]


@dataclass(frozen=True)
class GapCurves:
    """The mean gap and the mean of its largest tenth, over `runs` runs."""

    runs: int
    mean: GapCurve
    top10: GapCurve


def gap_curves(runs: Sequence[PositionGaps]) -> GapCurves | None:
    """Average each run over the tokens of a bin, then average the runs; None if no bin has enough tokens."""
    longest = max((len(run.positions) for run in runs), default=0)
    if not longest:
        return None
    width = math.ceil(longest / _BINS)
    binned = []  # the gaps of each run, weighted by tokens, where these suffice
    for run in runs:
        gaps = pd.DataFrame({"mean": run.mean, "top10": run.top10}, dtype=float)
        tokens = pd.Series(run.tokens, dtype=float)
        places = np.arange(len(tokens)) // width
        sums, seen = gaps.mul(tokens, axis="index").groupby(places).sum(), tokens.groupby(places).sum()
        binned.append(sums[seen >= _FEWEST].div(seen[seen >= _FEWEST], axis="index"))
    table = pd.concat(dict(enumerate(binned)), axis="columns").dropna()
    if table.empty:  # every point is a mean over the same runs
        return None
    starts = [width * place for place in table.index]
    positions = tuple(start + (min(width, longest - start) + 1) / 2 for start in starts)
    bands = (band(table.xs(name, axis="columns", level=1), 0, 1) for name in ("mean", "top10"))
    return GapCurves(len(runs), *(GapCurve(**vars(of_kind), positions=positions) for of_kind in bands))


def induced_threshold(delta: float, w_min: float, length: int, span: int | None = None) -> tuple[float, ...]:
    """delta / w_t at t = 1..length of a response of that length: the limit on D_t that w_t D_t <= delta sets.

    T of w_t is `span`, or the length if that is None.
    """
    return tuple(delta / position_weight(t, span or length, w_min) for t in range(1, length + 1))


@dataclass(frozen=True, eq=False)
class StudyResults:
    """All data for a study's report: the `boards` of its `grids`, by name; of a grid without any score, why it is
    `absent`. `positions` and `windows` map an MLflow run to its diagnostics, as far as the figures need them and the
    runs have them.
    """

    grids: tuple[SweepGrid, ...]
    boards: Mapping[str, Scoreboard]
    absent: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, PositionGaps] = field(default_factory=dict)
    windows: Mapping[str, TokenWindow] = field(default_factory=dict)

    def why_absent(self, name: str) -> str:
        """Why a sweep has no board."""
        return self.absent.get(name, f"the study has no sweep {name!r}")

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the main sweep in the order of their roles, as declared; empty without a main sweep."""
        runs = (run for grid in self.grids if grid.name == MAIN for run in grid.expected)
        return tuple(dict.fromkeys(run.model for run in runs))


def score_grid(
    uri: str,
    experiment: str,
    grid: SweepGrid,
    claims: Sequence[Claim],
    partial: bool,
    metrics: Callable[[str], bool],
    listing: Sequence[StoredRun] | None = None,
) -> Scoreboard:
    """The runs of a grid, read and scored; the arguments as of `read_sweep` and `score_claimed`, and so the errors."""
    run_ids = [run.run_id for run in grid.expected if run.run_id is not None]
    data = read_sweep(uri, experiment, grid.name, metrics, run_ids, listing)
    return score_claimed(data, grid.expected, claims, partial, grid.pairing)


def read_study(
    uri: str,
    experiment: str,
    name: str,
    sweeps: Sequence[SweepGrid],
    partial: bool = False,
    claims: Mapping[str, Sequence[Claim]] = MappingProxyType({}),
) -> StudyResults:
    """Read and score every sweep; `claims`: those of a sweep, by its name, for runs that no claim waits for.

    Raises UserError as `read_sweep` and `score_sweep` do for the first incomplete sweep; with `partial`, only if no
    sweep has any score, or if the store fails.
    """
    listing, boards, absent = list_runs(uri, experiment), {}, {}
    for grid in sweeps:
        # The ablations show scores only; other training metrics are read for the main sweep alone.
        metrics = (
            is_result
            if grid.name == MAIN
            else lambda name: name == LENGTH or schema.parse_validation_metric(name) is not None
        )
        try:
            of_sweep = claims.get(grid.name, ())
            boards[grid.name] = score_grid(uri, experiment, grid, of_sweep, partial, metrics, listing)
        except UserError as error:
            if not partial or isinstance(error, StoreAway):
                raise
            absent[grid.name] = str(error)
    if not boards:
        raise UserError(f"study {name!r} has nothing to report: {absent[sweeps[0].name]}")
    study = StudyResults(tuple(sweeps), boards, absent)
    if (main := boards.get(MAIN)) is None:
        return study
    pair = [run.mlflow_id for variant in (OURS, COMPARED) for run in main.runs_of(main.models[0], variant)]
    ours = [run.mlflow_id for model in main.models for run in main.runs_of(model, OURS)]
    positions, windows = read_positions(uri, filter(None, pair)), read_windows(uri, filter(None, ours))
    return replace(study, positions=positions, windows=windows)
