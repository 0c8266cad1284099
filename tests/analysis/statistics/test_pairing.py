"""Whether methods are compared seed by seed: by what the runs share, or by what the sweep file says."""

from dataclasses import replace

import pytest

from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.analysis.statistics.paired import difference
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
