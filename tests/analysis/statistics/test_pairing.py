"""Whether methods are compared seed by seed: by what the runs share, or by what the sweep file says."""

from dataclasses import replace

import pytest
from scipy import stats

from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.analysis.statistics.paired import difference, mean_difference
from cppo_lab.analysis.statistics.values import Score, run_values
from tests.analysis.made_sweeps import expect, make_data
from tests.analysis.statistics.made_curves import flat

OWN = {"model.warm_start.steps": "100"}


@pytest.mark.parametrize(
    ("logged", "pairing", "paired"),
    [
        (lambda seed: {}, None, True),
        (lambda seed: OWN, None, True),
        (lambda seed: {**OWN, "model.warm_start.seed": str(seed)}, None, True),
        (lambda seed: {**OWN, "model.warm_start.seed": "0"}, None, False),  # one start for all
        (lambda seed: {"model.name": "qwen3_8b_base"}, None, False),
        (lambda seed: {"model.name": "qwen3_8b_base"}, True, True),
        (lambda seed: OWN, False, False),
    ],
    ids=[
        "nothing logged",
        "own start",
        "own by number",
        "one start",
        "one model",
        "file: seed",
        "file: none",
    ],
)
def test_by_design(logged, pairing: bool | None, paired: bool) -> None:  # type: ignore[no-untyped-def]
    runs = flat({"a": [0.3, 0.4, 0.5], "b": [0.2, 0.31, 0.4]})
    data = make_data(runs)
    params = {f"{number:032x}": logged(run.seed) for number, run in enumerate(runs)}
    board = score_sweep(replace(data, params=params), expect(runs), pairing=pairing)
    found = difference(run_values(board), "m", "a", "b", Score.FINAL)
    assert found is not None and found.paired is paired


@pytest.mark.parametrize(
    ("logged", "pairing", "paired"),
    [
        ({"model.start_noise": "0.3"}, None, True),
        ({"model.start_noise": "0.3"}, False, False),
        ({**OWN, "model.warm_start.seed": "0"}, None, False),
    ],
    ids=["by the core", "file: none", "one warm start"],
)
def test_a_core_whose_seed_fixes_the_start(
    logged: dict[str, str], pairing: bool | None, paired: bool
) -> None:
    """Its runs of one seed are paired, and the same seeds on other models are no further ones."""
    runs = [
        *flat({"a": [0.3, 0.4, 0.5], "b": [0.2, 0.31, 0.4]}),
        *flat({"a": [0.5, 0.7, 0.6], "b": [0.2, 0.31, 0.4]}, "n"),
    ]
    data = make_data(runs)
    ids = [f"{number:032x}" for number in range(len(runs))]
    data = replace(data, params=dict.fromkeys(ids, logged), drawn_starts=frozenset(ids))
    values = run_values(score_sweep(data, expect(runs), pairing=pairing))
    parts = [difference(values, model, "a", "b", Score.FINAL) for model in "mn"]
    assert all(part is not None and part.paired is paired for part in parts)
    mean = mean_difference([part for part in parts if part is not None], values)
    assert mean is not None and mean.estimate.value == pytest.approx((0.29 + 0.89) / 6)
    if paired:  # by hand: the mean over the models of each seed
        by_seed = [(0.1 + 0.3) / 2, (0.09 + 0.39) / 2, (0.1 + 0.2) / 2]
        assert mean.estimate.error == pytest.approx(stats.sem(by_seed)) and mean.estimate.degrees == 2
    else:
        assert mean.estimate.degrees is not None and mean.estimate.degrees > 2
