"""The diagnostics that a run leaves as JSON artifacts: how far the policies part at each token position, and
one response through CPPO's two tests. Checked on reading: a file that is not what it should be is an error.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import store
from cppo_lab.analysis.reader import unreadable
from cppo_lab.errors import UserError

FOLDER = "diagnostics"
LARGEST = 5_000_000  # bytes; a run writes some kilobytes
REASONS = ("", "token", "prefix")

T = TypeVar("T")


@dataclass(frozen=True)
class PositionGaps:
    """|pi(y_t) - mu(y_t)| by token position 1..T of one run: `mean`, and the mean `top10` of the largest tenth.

    `tokens`: how many tokens were seen at a position; where none was, the gaps are NaN. `w_min` and `delta` are
    the rule's, None where it has none.
    """

    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    mean: tuple[float, ...]
    top10: tuple[float, ...]
    w_min: float | None
    delta: float | None


@dataclass(frozen=True)
class TokenWindow:
    """One response under CPPO, a value per token: w_t D_t, both thresholds it is held against, whether the token
    moves pi away from mu, and what masked it (one of REASONS; empty: kept).
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
        """The `width` neighbouring tokens that show most: both kinds of masking before one, then masked tokens beside
        kept ones that move away as well, then the most masked tokens, then the earliest.
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
    """`diagnostics/positions.json` of the runs that have one.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    return _read(uri, mlflow_ids, "positions.json", _positions)


def read_windows(uri: str, mlflow_ids: Iterable[str]) -> dict[str, TokenWindow]:
    """`diagnostics/window.json` of the runs that have one. Raises as `read_positions`."""
    return _read(uri, mlflow_ids, "window.json", _window)


def _read(uri: str, mlflow_ids: Iterable[str], name: str, parse: Callable[["_Fields"], T]) -> dict[str, T]:
    store.require_store(uri)
    found = {}
    try:
        client = MlflowClient(uri)
        for mlflow_id in mlflow_ids:
            text = _text(client, mlflow_id, name)
            if text is not None:
                found[mlflow_id] = parse(_Fields(text, f"{FOLDER}/{name} of MLflow run {mlflow_id}"))
    except (MlflowException, SQLAlchemyError) as error:
        raise unreadable(uri, error) from error
    return found


def _text(client: MlflowClient, mlflow_id: str, name: str) -> str | None:
    """The file's text; None if the run has no such file, or its artifacts are not to be seen from here."""
    path = f"{FOLDER}/{name}"
    entry = next((one for one in client.list_artifacts(mlflow_id, FOLDER) if one.path == path), None)
    if entry is None or entry.is_dir:
        return None
    # Asked of the store first, so that a file that is no diagnostic is not brought here at all.
    _small_enough(entry.file_size or 0, f"{path} of MLflow run {mlflow_id}")
    with tempfile.TemporaryDirectory(prefix="cppo-") as folder:
        local = Path(client.download_artifacts(mlflow_id, path, folder))
        _small_enough(local.stat().st_size, f"{path} of MLflow run {mlflow_id}")
        return local.read_bytes().decode("utf-8", errors="replace")


def _small_enough(size: int, what: str) -> None:
    if size > LARGEST:
        raise UserError(
            f"{what} has {size} bytes, more than the {LARGEST} that a diagnostic may have: "
            "delete that artifact, or run that configuration again"
        )


class _Fields:
    """The fields of one JSON object; a wrong one is named together with its file."""

    def __init__(self, text: str, what: str) -> None:
        self.what = what
        try:
            values = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise self.bad(f"is no JSON ({error})") from None
        if not isinstance(values, dict):
            raise self.bad("is no JSON object")
        self.values: Mapping[str, Any] = values
        self.length: int | None = None

    def bad(self, why: str) -> UserError:
        return UserError(
            f"{self.what} {why}: the run was recorded by other code than this; run it again, or delete it"
        )

    def one(self, key: str, check: Callable[[Any], T | None], kind: str) -> T:
        if key not in self.values:
            raise self.bad(f"lacks {key!r}")
        value = check(self.values[key])
        if value is None:
            raise self.bad(f"has {key}={self.values[key]!r:.60}, which is no {kind}")
        return value

    def many(self, key: str, check: Callable[[Any], T | None], kind: str) -> tuple[T, ...]:
        """A list of the same length as the lists before it."""
        if not isinstance(self.values.get(key), list):
            raise self.bad(f"lacks the list {key!r}")
        result = []
        for index, item in enumerate(self.values[key]):
            value = check(item)
            if value is None:
                raise self.bad(f"has {key}[{index}]={item!r:.60}, which is no {kind}")
            result.append(value)
        if self.length not in (None, len(result)):
            raise self.bad(f"has {len(result)} values of {key!r} beside lists of {self.length}")
        self.length = len(result)
        return tuple(result)

    def optional(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.one(key, _number, "number")


def _number(value: Any) -> float | None:
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if real else None


def _gap(value: Any) -> float | None:
    """A position that no response reached has no gap: null, or not a number."""
    absent = value is None or (isinstance(value, float) and math.isnan(value))
    return math.nan if absent else _number(value)


def _threshold(value: Any) -> float | None:
    """Infinite where the rule has no budget."""
    return math.inf if value == math.inf else _number(value)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text_value(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _reason(value: Any) -> str | None:
    return value if value in REASONS else None


def _positions(fields: _Fields) -> PositionGaps:
    gaps = PositionGaps(
        positions=fields.many("position", _count, "count"),
        tokens=fields.many("tokens", _count, "count"),
        mean=fields.many("gap_mean", _gap, "number"),
        top10=fields.many("gap_top10", _gap, "number"),
        w_min=fields.optional("w_min"),
        delta=fields.optional("delta"),
    )
    if gaps.positions != tuple(range(1, len(gaps.positions) + 1)) or not gaps.positions:
        raise fields.bad("has positions other than 1, 2, 3, ...")
    if any(
        seen and math.isnan(gap + top)
        for seen, gap, top in zip(gaps.tokens, gaps.mean, gaps.top10, strict=True)
    ):
        raise fields.bad("has no gap at a position that has tokens")
    return gaps


def _window(fields: _Fields) -> TokenWindow:
    window = TokenWindow(
        step=fields.one("step", _count, "count"),
        symbols=fields.many("symbols", _text_value, "text"),
        weighted_divergence=fields.many("weighted_divergence", _number, "number"),
        token_threshold=fields.one("token_threshold", _number, "number"),
        prefix_threshold=fields.many("prefix_threshold", _threshold, "number"),
        moves_away=fields.many("moves_away", _bool, "true or false"),
        masked_by=fields.many("masked_by", _reason, "reason to mask"),
    )
    if not window.symbols:
        raise fields.bad("has no token")
    return window
