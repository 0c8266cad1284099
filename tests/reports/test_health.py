"""The section on sampler against trainer: its numbers, its judgement, and reports without it."""

import itertools
import math
from collections.abc import Callable

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.reports.figures.drawing import figure_csv
from cppo_lab.reports.health import SHOWN
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.reports.conftest import page_of

BEFORE = schema.mismatch_metric("token_mult_prob_error", before_update=True)
OVER = schema.mismatch_metric("token_mult_prob_error")
ESS = schema.mismatch_metric("effective_sample_size", before_update=True)
OTHER = {"train/reward": 0.5}


def plain(_variant: str, _seed: int, step: int) -> dict[str, float]:
    over = 1.2 + step  # after the first update, which is not judged
    return {BEFORE: 1.001 + 0.001 * step, OVER: over, ESS: 1 - 0.01 * step, "train/truncated_share": 0.25}


FIRST = plain("", 0, 1)
Points = Callable[[str, int, int], dict[str, float]]  # of variant, seed and step


def spent(mean: float) -> Points:
    """D_t before the first update, of a rule with a budget and of one without."""
    noise = FIRST | {schema.DIVERGENCE_BEFORE: mean, schema.DIVERGENCE_BEFORE_P90: 3 * mean}
    return lambda variant, *_: noise | ({"rule/delta_b_mean": 0.016} if variant == "cppo" else {})


def crossing(*run: str | int) -> dict[str, float]:
    return FIRST | {BEFORE: {("cppo", 1, 4): 1.0901, ("cppo", 1, 7): 1.1201}.get(run, 1.05)}


def with_value(value: float) -> Points:
    return lambda *run: plain(*run) | ({BEFORE: value} if run[2] == 3 else {})


STEPS = range(1, 11)
PLAIN = (  # the median, and the worst: of the ESS the least
    "1.0065 (1.0110)",
    "0.9450 (0.9000)",
    "25.0% (25.0%)",
    "11.2000",
    "It was never exceeded in the 4 runs that logged it.",
)


@pytest.mark.parametrize(
    "points, staleness, shown, absent",
    [
        (plain, "0", PLAIN, ("staleness",)),
        (plain, "\u00b2", PLAIN, ("staleness",)),  # somebody's: no number
        (crossing, "2", ("In 4 of 4 runs rollout.staleness is above 0",), ("exceeded",)),
        (
            crossing,
            "0",
            ("It was exceeded in 1 of 4 runs: CPPO on base, seed 1 (2 steps, first 4, worst 1.1201).",),
            (),
        ),
        (
            spent(0.008),
            "0",
            (
                "a good part of a budget that is meant for training: CPPO on base: its mean 0.008 is 50% of delta_b "
                "(0.016), its 90th percentile 150%.",
                "0.008 (0.008)",
            ),
            (),
        ),
        (spent(0.0005), "0", ("0.0005 (0.0005)",), ("a good part of",)),
        (  # some runs are of an older version
            lambda *run: plain(*run) if run[0] == "cppo" else OTHER,
            "0",
            ("It was never exceeded in the 2 runs that logged it.", 'row">CPPO'),
            ('row">GRPO',),
        ),
        # What is not finite is left out, but infinity is above the threshold.
        (with_value(math.nan), "0", ("1.0070 (1.0110)", "It was never exceeded"), (">nan", ">inf")),
        (with_value(math.inf), "0", ("1.0070 (1.0110)", "It was exceeded in 4 of 4 runs"), (">nan", ">inf")),
        (lambda *_: OTHER, "0", (), ()),
    ],
)
def test_the_section(points: Points, staleness: str, shown: tuple[str, ...], absent: tuple[str, ...]) -> None:
    runs = []
    for variant, seed in itertools.product(("grpo", "cppo"), (0, 1)):
        logged = pd.DataFrame([points(variant, seed, step) for step in STEPS], STEPS).to_dict()
        runs.append(MadeRun(variant, "base", seed, both({0: 0.0, 10: 1.0}), logged, t_stop=10))
    params = {f"{number:032x}": {"rollout.staleness": staleness} for number in range(4)}
    contents, page = page_of(scored(runs, params=params))
    sections = [section for section in contents.sections if section.name == "mismatch"]
    html = page.partition('<section id="mismatch">')[2].partition("</section>")[0]
    assert [text for text in shown if text not in html] == []
    assert [text for text in absent if text in html] == []
    if not shown:
        assert not sections and not html
        return
    (section,) = sections
    assert set(section.tables) == {f"mismatch_{kind}" for kind in ("before_update", "updates", "thirds")}
    (picture,) = section.pictures
    picture.draw(picture.info, figure := Figure())
    assert len(figure.axes) == 2
    assert "11.2" in figure_csv(picture.info) or shown[0] != PLAIN[0]


def test_every_metric_that_is_shown_is_of_the_schema() -> None:
    assert all(schema.is_known_metric(name) for name in SHOWN)
