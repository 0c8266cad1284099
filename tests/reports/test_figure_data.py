"""The numbers of a figure as CSV: every value of every line, once, under the names above it."""

import csv
import io
from dataclasses import dataclass

from cppo_lab.reports.figures.data import figure_csv
from cppo_lab.rules import Stroke


@dataclass(frozen=True)
class Seed:
    run_id: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: tuple[int, float] | None


@dataclass(frozen=True)
class Curve:
    variant: str
    stroke: Stroke
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
    title: str
    source: str
    models: tuple[str, ...]
    floors: tuple[float | None, ...]
    panels: tuple[Panel, ...]
    run_ids: tuple[str, ...]


def rows(info: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(figure_csv(info))))


def test_every_value_is_there_once() -> None:
    seeds = (Seed("a1", (0, 5), (0.1, 0.25), (5, 0.25)), Seed("b2", (0,), (0.3,), None))
    lines = (Curve("cppo", Stroke("#000000"), seeds, (0, 5), (0.2, 0.25), ()),)
    info = Info(
        "t", "s", ("m", "n"), (None, 0.02), (Panel("m", 5, lines), Panel("n", None, ())), ("a1", "b2")
    )
    found = rows(info)
    assert list(found[0]) == [
        *(
            "series",
            "model",
            "t_stop",
            "variant",
            "run_id",
            "place",
            "models",
            "floors",
            "steps",
            "mean",
            "values",
        )
    ]
    said = [tuple(value for value in row.values() if value) for row in found]
    assert said == [
        ("1", "m"),
        ("2", "n", "0.02"),
        ("panels.lines", "m", "5", "cppo", "1", "0", "0.2"),
        ("panels.lines", "m", "5", "cppo", "2", "5", "0.25"),
        ("panels.lines.seeds", "m", "5", "cppo", "a1", "1", "0", "0.1"),
        ("panels.lines.seeds", "m", "5", "cppo", "a1", "2", "5", "0.25"),
        ("panels.lines.seeds", "m", "5", "cppo", "b2", "1", "0", "0.3"),
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
    assert found == [
        {"series": "", "rule": "cppo", "place": "1", "values": "0.5", "kinds": "token", "kept": "1"},
        {"series": "", "rule": "cppo", "place": "2", "values": "0.25", "kinds": "", "kept": "0"},
    ]


def test_a_figure_without_numbers_has_a_header_alone() -> None:
    assert figure_csv(Panel("m", None, ())) == "series,place\n"
