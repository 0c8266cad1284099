"""Reads the JSON artifacts of runs.

`diagnostics/positions.json` has the gap between the policies at each token position, `diagnostics/window.json` one
response under CPPO's two tests. Both are validated: a malformed file is an error. `search.json` is returned as text
(`search` parses it).

"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from cppo_lab.analysis.fields import Count, Model, Number, parsed
from cppo_lab.tracking import address
from cppo_lab.tracking.read import StoredFiles, reading

FOLDER = "diagnostics"
LARGEST = 5_000_000  # bytes; a run writes some kilobytes
SEARCH_FILE = "search.json"
LARGEST_SEARCH = 20_000_000  # bytes; a search of a thousand trials writes about a million

# A position that no response reached has no gap: it is null or NaN.
Gap = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


def _of_one_length(record: Any) -> None:
    """Raises ValueError if the lists of a record differ in length."""
    lengths = {name: len(value) for name, value in vars(record).items() if isinstance(value, tuple)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"lists of different lengths: {lengths}")


@dataclass(frozen=True)
class PositionGaps:
    """|pi(y_t) - mu(y_t)| by token position 1..T of one run: `mean`, and the mean `top10` of the largest tenth.

    `tokens`: how many tokens each position has; the gap is NaN where there is none. `w_min` and `delta` are the rule's
    constants, None if it has none. `span` is T of the position weight if that is the padded width, else None.
    """

    positions: Annotated[tuple[Count, ...], Field(alias="position")]
    tokens: tuple[Count, ...]
    mean: Annotated[tuple[Gap, ...], Field(alias="gap_mean")]
    top10: Annotated[tuple[Gap, ...], Field(alias="gap_top10")]
    w_min: Number | None = None
    delta: Number | None = None
    span: Count | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what does not fit together."""
        _of_one_length(self)
        if self.positions != tuple(range(1, len(self.positions) + 1)):
            raise ValueError("positions other than 1, 2, 3, ...")
        gaps = zip(self.tokens, self.mean, self.top10, strict=True)
        if any(seen and not math.isfinite(mean + top) for seen, mean, top in gaps):
            raise ValueError("no gap at a position that has tokens")


@dataclass(frozen=True)
class TokenWindow:
    """One response under CPPO, with one value per token: w_t D_t, the two thresholds it is compared with (the second is
    infinite where the rule has no budget), whether the token moves pi away from mu, and what masked it (empty if it was
    kept).
    """

    step: Count
    symbols: Annotated[tuple[str, ...], Field(min_length=1)]
    weighted_divergence: tuple[Number, ...]
    token_threshold: Number
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
    """`diagnostics/positions.json` of the runs that have one with tokens in it.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    gaps_of = _read(uri, mlflow_ids, "positions.json", PositionGaps)
    return {mlflow_id: gaps for mlflow_id, gaps in gaps_of.items() if gaps.positions}


def read_windows(uri: str, mlflow_ids: Iterable[str]) -> dict[str, TokenWindow]:
    """`diagnostics/window.json` of the runs that have one. Raises as `read_positions`."""
    return _read(uri, mlflow_ids, "window.json", TokenWindow)


def read_search_file(uri: str, mlflow_ids: Iterable[str]) -> tuple[str, str] | None:
    """(MLflow run, text of its `search.json`) of the first of the runs that has one; None if none has.

    Raises UserError if the store fails or the file is too large.
    """
    return next(iter(_contents(uri, mlflow_ids, SEARCH_FILE, LARGEST_SEARCH)), None)


def _read(uri: str, mlflow_ids: Iterable[str], name: str, kind: type[Model]) -> dict[str, Model]:
    path = f"{FOLDER}/{name}"
    return {
        mlflow_id: parsed(kind, content, f"{path} of MLflow run {mlflow_id}")
        for mlflow_id, content in _contents(uri, mlflow_ids, path, LARGEST)
    }


def _contents(uri: str, mlflow_ids: Iterable[str], path: str, largest: int) -> Iterator[tuple[str, str]]:
    """(MLflow run, text of its file at `path`) of each run that has one."""
    address.require_store(uri)
    with reading(uri) as client:
        for mlflow_id in mlflow_ids:
            content = StoredFiles(client, mlflow_id).content(path, largest)
            if content is not None:
                yield mlflow_id, content.decode("utf-8", errors="replace")
