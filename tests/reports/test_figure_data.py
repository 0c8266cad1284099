"""The CSV of a figure: every value and label once, under the names above it, or an error."""

import csv
import io
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import pytest

from cppo_lab.reports.figures import (
    axes,
    exact_core,
    gallery,
    model_curves,
    schematic,
    search,
    tokens,
)
from cppo_lab.reports.figures.data import APPEARANCE, HEADING, columns, figure_csv
from cppo_lab.rules import Stroke


@dataclass(frozen=True)
class Seed:
    run_id: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: float | None


@dataclass(frozen=True)
class Curve:
    variant: str
    stroke: Stroke = field(metadata=APPEARANCE)
    seeds: tuple[Seed, ...]
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    model: str
    t_stop: int | None
    lines: tuple[Curve, ...]


@dataclass(frozen=True)
class Info:
    title: str = field(metadata=HEADING)
    models: tuple[str, ...]
    floors: tuple[float | None, ...]
    panels: tuple[Panel, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)
    points: tuple[tuple[int, float], ...] = field(metadata=columns("trial", "score"))
    best: tuple[int, float] | None = field(metadata=columns("trial", "score"))


def rows(info: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(figure_csv(info))))


def test_everything_is_there_once() -> None:
    seeds = (Seed("a1", (0, 5), (0.1, 0.25), 0.25), Seed("b2", (0,), (0.3,), None))
    lines = (Curve("cppo", Stroke("#000000"), seeds, (0, 5), (0.2, 0.25), ()),)
    panels = (Panel("m", 5, lines), Panel("n", None, ()))
    info = Info("t", ("m", "n"), (None, 0.02), panels, ("a1", "b2"), ((3, 0.5),), (3, 0.75))
    found = rows(info)
    names = ("series", "text", "model", "t_stop", "variant", "run_id", "best", "place")
    assert list(found[0]) == [*names, "models", "floors", "steps", "mean", "values", "trial", "score"]
    said = [tuple(value for value in row.values() if value) for row in found]
    assert said == [
        ("title", "t"),
        ("1", "m"),
        ("2", "n", "0.02"),
        ("panels.lines", "m", "5", "cppo", "1", "0", "0.2"),
        ("panels.lines", "m", "5", "cppo", "2", "5", "0.25"),
        ("panels.lines.seeds", "m", "5", "cppo", "a1", "0.25", "1", "0", "0.1"),
        ("panels.lines.seeds", "m", "5", "cppo", "a1", "0.25", "2", "5", "0.25"),
        ("panels.lines.seeds", "m", "5", "cppo", "b2", "1", "0", "0.3"),
        ("panels", "n"),  # nothing is drawn in it, but its name
        ("points", "1", "3", "0.5"),
        ("best", "1", "3", "0.75"),
    ]


def test_words_stand_beside_the_numbers_of_their_place() -> None:
    @dataclass(frozen=True)
    class Bars:
        rule: str
        values: tuple[float, ...]
        kinds: tuple[str, ...]
        kept: tuple[bool, ...]
        others: tuple[str, ...]

    found = rows(Bars("cppo", (0.5, 0.25), ("token", ""), (True, False), ("=1+1",)))
    assert [tuple(row.values()) for row in found] == [
        ("", "cppo", "1", "0.5", "token", "1", ""),
        ("", "cppo", "2", "0.25", "", "0", ""),
        ("", "cppo", "1", "", "", "", "'=1+1"),
    ]


@pytest.mark.parametrize("value", [{"a": 1.0}, ((1.0, 2.0),), (Stroke("#000000"), 1.0), [1.0], object()])
def test_what_cannot_be_written_is_an_error(value: object) -> None:
    @dataclass(frozen=True)
    class Odd:
        odd: Any

    with pytest.raises(TypeError, match="field odd of Odd cannot be written"):
        figure_csv(Odd(value))


def test_a_part_may_not_hide_a_name_of_the_part_above_it() -> None:
    @dataclass(frozen=True)
    class Below:
        label: str

    @dataclass(frozen=True)
    class Above:
        label: str
        parts: tuple[Below, ...]

    with pytest.raises(TypeError, match="label of Below would replace that of a part above it"):
        figure_csv(Above("reward", (Below("CPPO"),)))


LOOKS = {"stroke", "palette", "columns", "run_ids", "plot"}  # of all figures: what their CSV may leave out
INFOS = (
    *(axes.AxesInfo, exact_core.ExactInfo, gallery.AblationsInfo, model_curves.ModelInfo),
    *(schematic.SchematicInfo, search.SearchInfo, tokens.GapsInfo, tokens.WindowInfo),
)


def test_figures_leave_out_how_they_look_and_nothing_else() -> None:
    modules = [__import__(info.__module__, fromlist=["x"]) for info in INFOS]
    kinds = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and is_dataclass(kind)
        and kind.__module__.startswith("cppo_lab.reports.figures")
    }
    assert {info.__name__ for info in INFOS} <= {kind.__name__ for kind in kinds}
    left_out = {part.name for kind in kinds for part in fields(kind) if part.metadata == dict(APPEARANCE)}
    assert left_out <= LOOKS
