"""Both palettes: what stands in one panel can be told apart, also by readers who see fewer colours, and in grey."""

from functools import cache
from itertools import combinations

import numpy as np
import pytest

from cppo_lab.reports.figures.drawing import PALETTES
from cppo_lab.reports.names import METHOD_ORDER
from cppo_lab.reports.tables import ablation_curves
from cppo_lab.rules import METHOD_COLOURS, NAMED, Stroke
from cppo_lab.sweep.file import Sweep, load_sweep, shipped_sweeps

ABLATIONS = ablation_curves().groupby("ablation")["variant"].unique()
OF_PAPER = {f"paper {name}": tuple(variants) for name, variants in ABLATIONS.items()} | {"main": METHOD_ORDER}
FULL = {"cppo_db0.02_w0.8": "cppo", "cppo_tv": "cppo", "cppo_topk_tv": "cppo"}
# What is left of linear RGB to people without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1), by
# all cones, protanopia, deuteranopia, tritanopia.
CONES = """
 1         0         0          0         1         0          0         0         1
 0.152286  1.052583 -0.204868   0.114503  0.786281  0.099216  -0.003882 -0.048116  1.051998
 0.367322  0.860646 -0.227968   0.280085  0.672501  0.047413  -0.011820  0.042940  0.968881
 1.255528 -0.076749 -0.178779  -0.078411  0.930809  0.147602   0.004733  0.691367  0.303900
"""
EYES = np.fromstring(CONES, sep=" ").reshape(4, 3, 3)


def lab(colour: str, eyes: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of an sRGB colour as these eyes see it."""
    coded = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    linear = np.clip(eyes @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(first: str, second: str, eyes: np.ndarray = EYES) -> float:
    """Least distance of two colours to these eyes (CIE76); about 2.3 can just be seen side by side."""
    return min(float(np.linalg.norm(lab(first, sight) - lab(second, sight))) for sight in eyes)


@cache
def panels() -> dict[str, tuple[str, ...]]:
    """The variants that share a panel."""
    sweeps = {name: load_sweep(name) for name in shipped_sweeps()}
    return {
        name: tuple(sweep.variants) for name, sweep in sweeps.items() if isinstance(sweep, Sweep)
    } | OF_PAPER


@pytest.mark.parametrize("palette", list(PALETTES))
@pytest.mark.parametrize("sweep", [*ABLATIONS.keys(), *OF_PAPER])
def test_variants_of_a_panel_differ(palette: str, sweep: str) -> None:
    for first, second in combinations(PALETTES[palette].strokes(panels()[sweep], FULL).values(), 2):
        if palette == "paper":
            assert apart(first.colour, second.colour, EYES[:1]) > 15, (first, second)
        else:
            assert first.dash != second.dash  # in grey print, too
            assert (first.marker or "-") != (second.marker or "-")
            assert apart(first.colour, second.colour) > 10, (first, second)


def test_the_papers_colours_are_not_for_everybody() -> None:
    """Or else the second palette would have no reason. Its bars differ, too."""
    assert min(apart(*pair) for pair in combinations(METHOD_COLOURS.values(), 2)) < 10
    reasons = PALETTES["colorblind"].reasons
    assert set(reasons) == set(PALETTES["paper"].reasons)
    assert min(apart(*pair) for pair in combinations(reasons.values(), 2)) > 10


@pytest.mark.parametrize("palette", list(PALETTES))
def test_a_variant_looks_the_same_in_every_sweep_and_unlike_others(palette: str) -> None:
    chosen, seen = PALETTES[palette], dict[str, Stroke]()
    listed = {name for name, variant in NAMED.items() if chosen.stroke_of(variant) is not None}
    for name, variants in panels().items():
        strokes = chosen.strokes(variants, FULL)
        for variant, stroke in strokes.items():
            if FULL.get(variant, variant) in listed:
                assert seen.setdefault(variant, stroke) == stroke
        assert len({*strokes.values()}) == len(variants), name
        assert {*variants} <= listed or name not in ("main", *ABLATIONS.keys()), name
    users = ("cppo", "dppo", "a", "b", "cppo_soft", "c")
    strokes = chosen.strokes(users)
    assert len({*strokes.values()}) == 6 and strokes == chosen.strokes(users)
