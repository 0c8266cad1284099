"""Both palettes: what stands in one panel can be told apart, also by readers who see fewer colours, and in grey."""

from itertools import combinations

import numpy as np
import pytest

from cppo_lab.reports.figures.palette import PALETTES
from cppo_lab.rules import METHOD_COLOURS, Stroke
from cppo_lab.sweep.file import Sweep, load_sweep, shipped_sweeps

METHODS = ("grpo", "minpro", "cispo", "dppo", "trm_max", "trm_avg", "cppo")
PAPER_SWEEPS = {
    "paper sensitivity": ("cppo_db0.02_w0.8", "cppo_db0.03_w0.8", "cppo_db0.02_w0.6", "dppo"),
    "paper kl_vs_tv": ("cppo_tv", "cppo_kl", "trm_max_avg", "dppo"),
    "paper binary_vs_topk": ("cppo_topk_tv", "cppo_binary_tv", "dppo"),
}
FULL = {"cppo_db0.02_w0.8": "cppo", "cppo_tv": "cppo", "cppo_topk_tv": "cppo"}
# What is left of linear RGB to people without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1).
SEEN = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(colour: str, eyes: str) -> np.ndarray:
    """CIE L*a*b* (D65) of an sRGB colour as these eyes see it."""
    coded = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    linear = np.clip(SEEN[eyes] @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(one: str, other: str, eyes: str) -> float:
    """Distance of two colours (CIE76); about 2.3 can just be seen side by side."""
    return float(np.linalg.norm(lab(one, eyes) - lab(other, eyes)))


def panels() -> dict[str, tuple[str, ...]]:
    """The variants that share a panel."""
    found = {}
    for name in shipped_sweeps():
        sweep = load_sweep(name)
        if isinstance(sweep, Sweep):
            found[name] = tuple(sweep.variants)
    return found | PAPER_SWEEPS | {"main": METHODS}


ABLATIONS = (
    *("single_mechanism", "position_weight_ordering", "mask_vs_soft", "sensitivity", "kl_vs_tv"),
    "binary_vs_topk",
)


@pytest.mark.parametrize("palette", list(PALETTES))
@pytest.mark.parametrize("sweep", ["main", *ABLATIONS, *PAPER_SWEEPS])
def test_variants_of_a_panel_differ(palette: str, sweep: str) -> None:
    strokes = PALETTES[palette].strokes(panels()[sweep], FULL)
    assert len(set(strokes.values())) == len(strokes)
    for one, other in combinations(strokes.values(), 2):
        if palette == "paper":
            assert apart(one.colour, other.colour, "all cones") > 15, (one, other)
        else:
            assert one.dash != other.dash  # in grey print, too
            assert (one.marker or "-") != (other.marker or "-")
            for eyes in SEEN:
                assert apart(one.colour, other.colour, eyes) > 10, (one, other, eyes)


def test_the_papers_colours_are_not_for_everybody() -> None:
    """Or else the second palette would have no reason."""
    closest = min(
        apart(one, other, eyes) for one, other in combinations(METHOD_COLOURS.values(), 2) for eyes in SEEN
    )
    assert closest < 10


@pytest.mark.parametrize("palette", list(PALETTES))
def test_a_variant_looks_the_same_in_every_sweep(palette: str) -> None:
    seen: dict[str, Stroke] = {}
    known = {*PALETTES[palette].methods, *PALETTES[palette].variants}
    for variants in panels().values():
        for name, stroke in PALETTES[palette].strokes(variants, FULL).items():
            if FULL.get(name, name) in known:
                assert seen.setdefault(name, stroke) == stroke


@pytest.mark.parametrize("palette", list(PALETTES))
def test_every_variant_of_the_papers_sweeps_is_known(palette: str) -> None:
    known = {*PALETTES[palette].methods, *PALETTES[palette].variants}
    for name in ("main", *ABLATIONS):
        assert set(panels()[name]) <= known, name


@pytest.mark.parametrize("palette", list(PALETTES))
def test_variants_of_the_users_own_differ_from_the_rest(palette: str) -> None:
    for name, variants in panels().items():
        assert len(set(PALETTES[palette].strokes(variants, FULL).values())) == len(variants), name
    strokes = PALETTES[palette].strokes(("cppo", "dppo", "a", "b", "cppo_soft", "c"))
    assert len(set(strokes.values())) == 6
    assert strokes == PALETTES[palette].strokes(("cppo", "dppo", "a", "b", "cppo_soft", "c"))


def test_the_bars_of_the_colour_blind_palette_differ() -> None:
    reasons = PALETTES["colorblind"].reasons
    assert set(reasons) == set(PALETTES["paper"].reasons)
    for one, other in combinations(reasons.values(), 2):
        for eyes in SEEN:
            assert apart(one, other, eyes) > 10, (one, other, eyes)
