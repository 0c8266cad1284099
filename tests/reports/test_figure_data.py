"""The CSV of a figure: every value and label once, under the names above it, or an error."""

import csv
import io
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import pytest

from cppo_lab.reports import exact_view, search
from cppo_lab.reports.figures import axes, gallery
from cppo_lab.reports.figures.drawing import APPEARANCE, HEADING, figure_csv
from cppo_lab.rules import Stroke


@dataclass(frozen=True)
class Line:
    run_id: str
    stroke: Stroke = field(metadata=APPEARANCE)
    best: float | None
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    model: str
    floors: tuple[float | None, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Info:
    title: str = field(metadata=HEADING)
    panels: tuple[Panel, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)


@dataclass(frozen=True)
class Anything:
    value: Any


@dataclass(frozen=True)
class Above:
    label: str
    parts: tuple[object, ...]


@dataclass(frozen=True)
class Bars:
    rule: str
    values: tuple[float, ...]
    kinds: tuple[str, ...]
    kept: tuple[bool, ...]
    others: tuple[str, ...]


def rows(info: object) -> list[list[str]]:
    return list(csv.reader(io.StringIO(figure_csv(info))))


def test_everything_is_there_once() -> None:
    seeds = (
        Line("a1", Stroke("#000000"), 0.25, (0, 5), (0.1, 0.25)),
        Line("b2", Stroke("#000000"), None, (0,), (0.3,)),
    )
    panels = (Panel("m", (None, 0.02), seeds), Panel("n", (), ()))
    heads, *written = rows(Info("t", panels, ("a1", "b2")))
    assert heads == ["series", "text", "model", "run_id", "best", "place", "floors", "steps", "values"]
    assert [" ".join(value for value in row if value) for row in written] == [
        "title t",
        "panels m 1",
        "panels m 2 0.02",
        "panels.lines m a1 0.25 1 0 0.1",
        "panels.lines m a1 0.25 2 5 0.25",
        "panels.lines m b2 1 0 0.3",
        "panels n",  # nothing is drawn in it, but its name
    ]


def test_words_stand_beside_the_numbers_of_their_place() -> None:
    assert rows(Bars("cppo", (0.5, 0.25), ("token", ""), (True, False), ("=1+1",)))[1:] == [
        ["", "cppo", "1", "0.5", "token", "1", ""],
        ["", "cppo", "2", "0.25", "", "0", ""],
        ["", "cppo", "1", "", "", "", "'=1+1"],
    ]


@pytest.mark.parametrize(
    "info, said",
    [
        *(
            (Anything(value), "field value of Anything cannot be written")
            for value in ({"a": 1.0}, ((1.0, 2.0),), (Stroke("#000000"), 1.0), [1.0], object())
        ),
        (Above("reward", (Above("CPPO", ()),)), "label of Above would replace that of a part above it"),
    ],
)
def test_what_cannot_be_written_is_an_error(info: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        figure_csv(info)


def test_figures_leave_out_how_they_look_and_nothing_else() -> None:
    modules = (axes, exact_view, gallery, search)
    left_out = {
        part.name
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__.startswith("cppo_lab.reports")
        for part in fields(kind)
        if part.metadata == dict(APPEARANCE)
    }
    assert {"stroke", "run_ids"} <= left_out <= {"stroke", "palette", "columns", "run_ids", "plot"}
