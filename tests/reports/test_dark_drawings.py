"""Drawings on a dark ground: texts and curves can be read there, and a scale of colours keeps its order."""

import re

import pytest

from cppo_lab.reports.dark_drawings import MOST, adaptable, dark, dark_style
from cppo_lab.reports.page import sections

GROUND = "181d23"  # --card of page.css in the dark scheme


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("colour", "least"), [("222222", 7), ("555555", 4.5), ("000000", 7), ("0052d9", 4.5)]
)
def test_texts_can_be_read_in_the_dark(colour: str, least: float) -> None:
    assert contrast(dark(colour)[1:], GROUND) >= least


def test_white_grounds_do_not_glare() -> None:
    assert contrast(dark("ffffff")[1:], GROUND) < 1.1
    assert contrast(dark("e4e4e4")[1:], GROUND) < 2  # lines of a grid stay behind the curves


@pytest.mark.parametrize("hue", ["e05759", "59a14f", "d9a521", "b07aa1"])
def test_a_bright_curve_stays_as_it_is_or_gets_lighter(hue: str) -> None:
    assert luminance(dark(hue)[1:]) >= luminance(hue) - 0.01


def test_every_colour_becomes_a_variable_with_its_light_value() -> None:
    svg = '<path style="fill: none; stroke: #0052D9"/><text style="fill: #222222">#222222</text>'
    found = adaptable(svg)
    assert "stroke: var(--k0052d9, #0052d9)" in found and "fill: var(--k222222, #222222)" in found
    assert ">#222222<" in found  # a text is no colour
    style = dark_style(found)
    assert style.count(f"--k0052d9:{dark('0052d9')};") == 2
    assert all(line.startswith("@media screen") for line in style.splitlines())


def test_a_scale_of_colours_stays() -> None:
    scale = [f"ff{value:02x}00" for value in range(0, 250, 4)]
    assert len(scale) > MOST
    found = adaptable(
        "".join(f'<path style="fill: #{one}"/>' for one in scale) + '<g style="fill: #555555"/>'
    )
    assert re.findall(r"--k(\w+)", found) == ["555555"]


def test_without_drawings_there_is_no_style() -> None:
    assert dark_style("<p>fill: red</p>") == ""


def test_the_contents_are_the_sections() -> None:
    page = (
        '<section id="scores">\n<h2>Scores</h2></section>\n<section id="runs">\n<details class="part">\n'
        "<summary><h2>A &lt; B</h2></summary></details></section><section id='other'><h2>x</h2>"
    )
    assert sections(page) == [("scores", "Scores"), ("runs", "A &lt; B")]
