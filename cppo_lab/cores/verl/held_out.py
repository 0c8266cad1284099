"""The validation problems of a run and the grades of their answers, as verl's data and queue have them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import transfer_queue as tq
from numpy.typing import NDArray
from transfer_queue import KVBatchMeta

from cppo_lab.answers.outcomes import problem_ids

Row = Mapping[str, Any]  # of verl's data set


@dataclass(frozen=True)
class HeldOut:
    """P problems in the order of the data; those of benchmarks that the run does not have are left out.

    problems: their ids. benchmark_of: each one's place in `benchmarks`.
    """

    benchmarks: tuple[str, ...]
    problems: tuple[str, ...]
    benchmark_of: tuple[int, ...]
    places: Mapping[tuple[str, int], int]  # (benchmark, index of the row within its file) -> place

    def place(self, source: str, extra_info: Row) -> int | None:
        """The place of the problem of a data row; None for one of another benchmark."""
        return self.places.get((source, int(extra_info["index"])))


def held_out(rows: Iterable[Row], benchmarks: Sequence[str]) -> HeldOut:
    """The problems of verl's validation data `rows`.

    Raises ValueError if two rows of a benchmark have one index: their answers could not be told apart.
    """
    own = [row for row in rows if row["data_source"] in benchmarks]
    keys = [(str(row["data_source"]), int(row["extra_info"]["index"])) for row in own]
    if len(set(keys)) < len(keys):
        raise ValueError("two rows of the validation data have the same data_source and extra_info.index")
    sources = [source for source, _ in keys]
    asked = [asked_by(row["raw_prompt"]) for row in own]
    return HeldOut(
        tuple(benchmarks),
        problem_ids(sources, asked),
        tuple(benchmarks.index(source) for source in sources),
        {key: place for place, key in enumerate(keys)},
    )


def asked_by(messages: Iterable[Row]) -> str:
    """The text of a prompt, without what a chat template puts around it."""
    return "\n\n".join(str(message["content"]) for message in messages)


@dataclass(frozen=True)
class Graded:
    """A response to a validation problem. `draw`: its number among the responses to it; `length` in tokens."""

    key: str  # in the queue
    place: int
    draw: int
    right: bool
    length: int


def graded(batch: KVBatchMeta, problems: HeldOut) -> list[Graded]:
    """The responses of a validation batch that is still in the queue, by problem and draw. No text is fetched."""
    fields = ["data_source", "extra_info", "extra_fields"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    found = []
    columns = (data[name].tolist() for name in fields)
    for key, tag, source, info, extra in zip(batch.keys, batch.tags, *columns, strict=True):
        place = problems.place(str(source), info)
        if place is not None:
            right = float(extra["reward_extra_info"]["acc"]) > 0.5
            found.append(Graded(key, place, int(key.rsplit("_", 2)[1]), right, int(tag["response_len"])))
    return sorted(found, key=lambda one: (one.place, one.draw))


def counted(
    responses: Iterable[Graded], problems: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Right answers, answers cut off at `longest` tokens and mean length of every problem, each [P].

    A response that failed is neither: it counts as wrong, as in verl's mean.
    """
    right, cut_off, count, tokens = (np.zeros(problems, np.int64) for _ in range(4))
    for one in responses:
        right[one.place] += one.right
        cut_off[one.place] += one.length >= longest
        count[one.place] += 1
        tokens[one.place] += one.length
    return right, cut_off, tokens / np.maximum(count, 1)
