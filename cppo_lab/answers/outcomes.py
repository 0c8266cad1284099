"""Each problem's outcome at each validation of a run: an npz file."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from cppo_lab.answers import ANSWERS, pack_arrays, unpacked_arrays

OUTCOMES = f"{ANSWERS}/outcomes.npz"
FORMAT = 1
# Bytes, of the file and of what it unpacks to; 90 problems at 112 validations need 80,000, 30,000 at 290 70 million.
LARGEST = 256 * 2**20
REMEDY = "delete that file"
_COLUMNS = {
    "benchmark_of": "<i8",
    "steps": "<i8",
    "right": "<u2",
    "cut_off": "<u2",
    "length": "<f4",
}
_WIDE = ("right", "cut_off", "length")  # a value for each problem at each validation
_MOST_SAMPLES = np.iinfo(np.uint16).max  # answers to a problem that `right` and `cut_off` can count


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of P problems at V validations, each of `samples` answers to every problem.

    problems: P distinct ids, the same in every run on the same data (`problem_ids`), in the order of the data.
    benchmark_of [P] int: each problem's index in `benchmarks`.
    steps [V] int: the validated training steps, increasing; 0 is before training.
    right, cut_off [V, P] uint16: how many of a problem's answers are right, and how many hit the length limit.
    length [V, P] float32: their mean length in tokens.

    A benchmark's Avg@k is the mean of right / samples over its problems.
    """

    samples: int
    benchmarks: tuple[str, ...]
    problems: tuple[str, ...]
    benchmark_of: NDArray[np.int64]
    steps: NDArray[np.int64]
    right: NDArray[np.uint16]
    cut_off: NDArray[np.uint16]
    length: NDArray[np.float32]

    def __post_init__(self) -> None:
        """Raises ValueError if the parts do not fit together, or a value is out of range."""
        shape = (len(self.steps), len(self.problems))
        if not 1 <= self.samples <= _MOST_SAMPLES:
            raise ValueError(f"samples={self.samples}: 1 to {_MOST_SAMPLES} are wanted")
        if len(set(self.problems)) != shape[1] or len(set(self.benchmarks)) != len(self.benchmarks):
            raise ValueError("a problem or a benchmark is named twice")
        if self.benchmark_of.shape != shape[1:]:
            raise ValueError("its problems and benchmarks have different numbers")
        if set(self.benchmark_of.tolist()) != set(range(len(self.benchmarks))):
            raise ValueError("a problem has no benchmark, or a benchmark no problem")
        if any(getattr(self, name).shape != shape for name in _WIDE):
            raise ValueError("its columns have different shapes")
        if np.any(self.steps[1:] <= self.steps[:-1]) or np.any(self.steps < 0):
            raise ValueError("its steps do not increase from 0")
        if np.any(self.right > self.samples) or np.any(self.cut_off > self.samples):
            raise ValueError("more answers are right, or truncated, than there are")
        if not np.all(np.isfinite(self.length)) or np.any(self.length < 0):
            raise ValueError("a length is not a number >= 0")

    def append(
        self, step: int, right: NDArray[Any], cut_off: NDArray[Any], length: NDArray[Any]
    ) -> "Outcomes":
        """The outcomes with a validation appended; all arrays are [P].

        Raises ValueError if `step` is not after the last step, or a value is out of range.
        """
        return replace(
            self,
            steps=np.append(self.steps, np.int64(step)),
            right=_with_row(self.right, right),
            cut_off=_with_row(self.cut_off, cut_off),
            length=_with_row(self.length, length),
        )

    def until(self, step: int) -> "Outcomes":
        """The validations up to `step`: where a run that resumes from a checkpoint continues."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        return replace(
            self, steps=self.steps[:count], **{name: getattr(self, name)[:count] for name in _WIDE}
        )

    @property
    def key(self) -> tuple[object, ...]:
        """What outcomes of the same problems have in common."""
        return self.samples, self.benchmarks, self.problems, self.benchmark_of.tobytes()


def no_outcomes(
    samples: int, benchmarks: Sequence[str], problems: Sequence[str], benchmark_of: Sequence[int]
) -> Outcomes:
    """Outcomes before the first validation. Raises ValueError as `Outcomes` does."""
    shape = (0, len(problems))
    return Outcomes(
        samples,
        tuple(benchmarks),
        tuple(problems),
        np.asarray(benchmark_of, dtype=np.int64),
        np.empty(0, np.int64),
        np.empty(shape, np.uint16),
        np.empty(shape, np.uint16),
        np.empty(shape, np.float32),
    )


def problem_ids(benchmarks: Sequence[str], contents: Sequence[str]) -> tuple[str, ...]:
    """An id for each problem of a benchmark, derived from its content: `aime24-1f3a8c0d2b4e`.

    A problem has the same id in every run, wherever it is in the data. If a benchmark has a problem twice, the second
    id ends in `-2`.
    """
    seen, ids = Counter[str](), []
    for benchmark, content in zip(benchmarks, contents, strict=True):
        name = f"{benchmark}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
        seen[name] += 1
        ids.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return tuple(ids)


def chosen_problems(benchmark_of: Sequence[int], most: int | None) -> list[int]:
    """The sorted indices of the problems whose answers are recorded: `most` of them, or all if None.

    The first of each benchmark, then the second of each, and so on: the same in every run on the same data.
    """
    seen: dict[int, int] = {}
    ranked = []
    for place, benchmark in enumerate(benchmark_of):
        rank = seen[benchmark] = seen.get(benchmark, -1) + 1
        ranked.append((rank, benchmark, place))
    return sorted(place for _, _, place in sorted(ranked)[:most])


def write(outcomes: Outcomes) -> bytes:
    """The file's bytes."""
    about = {
        "format": FORMAT,
        "samples": outcomes.samples,
        "benchmarks": outcomes.benchmarks,
        "problems": outcomes.problems,
    }
    return pack_arrays(about, vars(outcomes), _COLUMNS)


def read(data: bytes, what: str) -> Outcomes:
    """The outcomes in a file's bytes; `what` names the file in messages. Everything in it is validated.

    Raises UserError if it is too large, broken, or not such a file.
    """
    said = f"{what} has no outcomes of validations"
    with unpacked_arrays(data, _COLUMNS, FORMAT, LARGEST, said, REMEDY, _WIDE) as (about, arrays):
        return Outcomes(**vars(_About.model_validate(about)) | arrays)


_Name = Annotated[str, Field(min_length=1, max_length=300)]


class _About(BaseModel):
    samples: Annotated[int, Field(strict=True)]
    benchmarks: tuple[_Name, ...]
    problems: tuple[_Name, ...]


def _with_row(rows: NDArray[Any], row: NDArray[Any]) -> NDArray[Any]:
    values = np.asarray(row)
    if values.shape != rows.shape[1:]:
        raise ValueError(f"a validation of shape {values.shape}, of {rows.shape[1]} problems")
    if rows.dtype.kind == "u" and np.any(
        (values < 0) | (values > _MOST_SAMPLES) | (values != np.floor(values))
    ):
        raise ValueError("a count is not a whole number >= 0")
    return np.concatenate([rows, values[None].astype(rows.dtype)])
