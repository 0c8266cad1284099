"""Reads the JSON artifacts of runs.

`diagnostics/positions.json` has the gap between the policies at each token position, `diagnostics/window.json` one
response under CPPO's two tests. Both are validated: a malformed file is an error. `search.json` is returned as text
(`search` parses it).

"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from cppo_lab.analysis.fields import Fields, boolean, count, number, text
from cppo_lab.tracking import address
from cppo_lab.tracking.read import StoredFiles, reading

FOLDER = "diagnostics"
LARGEST = 5_000_000  # bytes; a run writes some kilobytes
SEARCH_FILE = "search.json"
LARGEST_SEARCH = 20_000_000  # bytes; a search of a thousand trials writes about a million
REASONS = ("", "token", "prefix")

T = TypeVar("T")


@dataclass(frozen=True)
class PositionGaps:
    """|pi(y_t) - mu(y_t)| by token position 1..T of one run: `mean`, and the mean `top10` of the largest tenth.

    `tokens`: how many tokens each position has; the gap is NaN where there is none. `w_min` and `delta` are the rule's
    constants, None if it has none. `span` is T of the position weight if that is the padded width, else None.
    """

    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    mean: tuple[float, ...]
    top10: tuple[float, ...]
    w_min: float | None
    delta: float | None
    span: int | None = None


@dataclass(frozen=True)
class TokenWindow:
    """One response under CPPO, with one value per token: w_t D_t, the two thresholds it is compared with, whether the
    token moves pi away from mu, and what masked it (one of REASONS; empty if it was kept).
    """

    step: int
    symbols: tuple[str, ...]
    weighted_divergence: tuple[float, ...]
    token_threshold: float
    prefix_threshold: tuple[float, ...]
    moves_away: tuple[bool, ...]
    masked_by: tuple[str, ...]

    def effective(self) -> tuple[float, ...]:
        """c_t, the lower of the two thresholds."""
        return tuple(min(self.token_threshold, value) for value in self.prefix_threshold)

    def span(self, width: int) -> "TokenWindow":
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
        return TokenWindow(
            self.step,
            self.symbols[cut],
            self.weighted_divergence[cut],
            self.token_threshold,
            self.prefix_threshold[cut],
            self.moves_away[cut],
            self.masked_by[cut],
        )


def read_positions(uri: str, mlflow_ids: Iterable[str]) -> dict[str, PositionGaps]:
    """`diagnostics/positions.json` of the runs that have one with tokens in it.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    found = _read(uri, mlflow_ids, "positions.json", _positions)
    return {mlflow_id: gaps for mlflow_id, gaps in found.items() if gaps.positions}


def read_windows(uri: str, mlflow_ids: Iterable[str]) -> dict[str, TokenWindow]:
    """`diagnostics/window.json` of the runs that have one. Raises as `read_positions`."""
    return _read(uri, mlflow_ids, "window.json", _window)


def read_search_file(uri: str, mlflow_ids: Iterable[str]) -> tuple[str, str] | None:
    """(MLflow run, text of its `search.json`) of the first of the runs that has one; None if none has.

    Raises UserError if the store fails or the file is too large.
    """
    return next(iter(_contents(uri, mlflow_ids, SEARCH_FILE, LARGEST_SEARCH)), None)


def _read(uri: str, mlflow_ids: Iterable[str], name: str, parse: Callable[[Fields], T]) -> dict[str, T]:
    path = f"{FOLDER}/{name}"
    return {
        mlflow_id: parse(Fields.parse(content, f"{path} of MLflow run {mlflow_id}"))
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


def _gap(value: Any) -> float | None:
    """A position that no response reached has no gap: it is null or NaN."""
    absent = value is None or (isinstance(value, float) and math.isnan(value))
    return math.nan if absent else number(value)


def _threshold(value: Any) -> float | None:
    """Infinite where the rule has no budget."""
    return math.inf if value == math.inf else number(value)


def _reason(value: Any) -> str | None:
    return value if value in REASONS else None


def _span(value: float | None) -> int | None:
    return None if value is None else int(value)


def _positions(fields: Fields) -> PositionGaps:
    gaps = PositionGaps(
        positions=fields.many("position", count, "count"),
        tokens=fields.many("tokens", count, "count"),
        mean=fields.many("gap_mean", _gap, "number"),
        top10=fields.many("gap_top10", _gap, "number"),
        w_min=fields.optional("w_min"),
        delta=fields.optional("delta"),
        span=_span(fields.optional("span")),
    )
    if gaps.positions != tuple(range(1, len(gaps.positions) + 1)):
        raise fields.bad("has positions other than 1, 2, 3, ...")
    if any(
        seen and math.isnan(gap + top)
        for seen, gap, top in zip(gaps.tokens, gaps.mean, gaps.top10, strict=True)
    ):
        raise fields.bad("has no gap at a position that has tokens")
    return gaps


def _window(fields: Fields) -> TokenWindow:
    window = TokenWindow(
        step=fields.one("step", count, "count"),
        symbols=fields.many("symbols", text, "text"),
        weighted_divergence=fields.many("weighted_divergence", number, "number"),
        token_threshold=fields.one("token_threshold", number, "number"),
        prefix_threshold=fields.many("prefix_threshold", _threshold, "number"),
        moves_away=fields.many("moves_away", boolean, "true or false"),
        masked_by=fields.many("masked_by", _reason, "reason to mask"),
    )
    if not window.symbols:
        raise fields.bad("has no token")
    return window
