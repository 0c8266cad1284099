"""Reads the JSON artifacts of runs.

`diagnostics/positions.json` has the gap between the policies at each token position, `diagnostics/window.json` one
response under CPPO's two tests. Both are validated: a malformed file is an error. `search.json` is returned as text
(`search_file` parses it).

"""

import math
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mlflow.tracking import MlflowClient

from cppo_lab.analysis.fields import Fields, boolean, count, number, text
from cppo_lab.errors import UserError
from cppo_lab.tracking import address
from cppo_lab.tracking.read import reading

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
    address.require_store(uri)
    with reading(uri) as client:
        for mlflow_id in mlflow_ids:
            content = _content(client, mlflow_id, "", SEARCH_FILE, LARGEST_SEARCH)
            if content is not None:
                return mlflow_id, content
    return None


def _read(uri: str, mlflow_ids: Iterable[str], name: str, parse: Callable[[Fields], T]) -> dict[str, T]:
    address.require_store(uri)
    found = {}
    with reading(uri) as client:
        for mlflow_id in mlflow_ids:
            content = _content(client, mlflow_id, FOLDER, f"{FOLDER}/{name}", LARGEST)
            if content is not None:
                what = f"{FOLDER}/{name} of MLflow run {mlflow_id}"
                found[mlflow_id] = parse(Fields.parse(content, what))
    return found


def _content(client: MlflowClient, mlflow_id: str, folder: str, path: str, largest: int) -> str | None:
    """The file's text; None if the run has no such file, or its artifacts cannot be reached from here."""
    entry = next((one for one in client.list_artifacts(mlflow_id, folder or None) if one.path == path), None)
    if entry is None or entry.is_dir:
        return None
    # The listed size is checked first, so that an oversized file is not downloaded at all.
    _small_enough(entry.file_size or 0, largest, f"{path} of MLflow run {mlflow_id}")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # no bar for a few kilobytes
    with tempfile.TemporaryDirectory(prefix="cppo-") as target:
        local = Path(client.download_artifacts(mlflow_id, path, target))
        _small_enough(local.stat().st_size, largest, f"{path} of MLflow run {mlflow_id}")
        return local.read_bytes().decode("utf-8", errors="replace")


def _small_enough(size: int, largest: int, what: str) -> None:
    if size > largest:
        raise UserError(
            f"{what} has {size} bytes, more than the {largest} allowed: "
            "delete that artifact, or run that configuration again"
        )


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
