"""The validation problems of a run and the grades of their answers, from verl's data and queue."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import transfer_queue as tq
from numpy.typing import NDArray
from transfer_queue import KVBatchMeta

from cppo_lab.answers.outcomes import problem_ids
from cppo_lab.cores.verl.wording import Row, Wording


@dataclass(frozen=True)
class HeldOut:
    """P problems in the order of the data; those of benchmarks that the run does not have are left out.

    problems: their ids. benchmark_of: the index of each one in `benchmarks`. truths: the true answers.
    """

    benchmarks: tuple[str, ...]
    problems: tuple[str, ...]
    benchmark_of: tuple[int, ...]
    truths: tuple[str, ...]
    places: Mapping[tuple[str, int], int]  # (benchmark, index of the row within its file) -> place


def held_out(rows: Iterable[Row], benchmarks: Sequence[str], wording: Wording) -> HeldOut:
    """The problems of verl's validation data `rows`.

    Raises ValueError if two rows of a benchmark have the same index: their answers would be indistinguishable.
    """
    own = [row for row in rows if row["data_source"] in benchmarks]
    keys = [(str(row["data_source"]), int(row["extra_info"]["index"])) for row in own]
    if len(set(keys)) < len(keys):
        raise ValueError("two rows of the validation data have the same data_source and extra_info.index")
    sources = [source for source, _ in keys]
    return HeldOut(
        tuple(benchmarks),
        problem_ids(sources, [wording.asked(row) for row in own]),
        tuple(benchmarks.index(source) for source in sources),
        tuple(wording.truth(row) for row in own),
        {key: place for place, key in enumerate(keys)},
    )


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
    columns = (data.pop(name).tolist() for name in fields)
    found = []
    for key, tag, source, info, extra in zip(batch.keys, batch.tags, *columns, strict=True):
        place = problems.places.get((str(source), int(info["index"])))
        if place is not None:
            right = float(extra["reward_extra_info"]["acc"]) > 0.5
            found.append(Graded(key, place, draw_of(key), right, int(tag["response_len"])))
    return sorted(found, key=lambda one: (one.place, one.draw))


def draw_of(key: str) -> int:
    """The number of a response among those to its prompt, from its key in the queue: prompt_draw_turn."""
    return int(key.rsplit("_", 2)[1])


def counted(
    responses: Iterable[Graded], problems: int, longest: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Right answers, answers cut off at `longest` tokens, and mean length of every problem, each [P].

    Failed responses are missing and count as wrong, as in verl's mean.
    """
    right, cut_off, count, tokens = (np.zeros(problems, np.int64) for _ in range(4))
    for one in responses:
        right[one.place] += one.right
        cut_off[one.place] += one.length >= longest
        count[one.place] += 1
        tokens[one.place] += one.length
    return right, cut_off, tokens / np.maximum(count, 1)
