"""The quickstart's sweep on the exact core: small enough for minutes, and able to decide."""

from cppo_lab.sweep.file import Sweep, load_sweep
from cppo_lab.sweep.plan import make_plan


def declared(name: str) -> Sweep:
    found = load_sweep(name)
    assert isinstance(found, Sweep)
    return found


def test_the_two_quickstarts_compare_the_same_rules_and_link_to_each_other() -> None:
    exact, mini = declared("quickstart_exact"), declared("quickstart")
    assert exact.variants == mini.variants
    assert (exact.beside, mini.beside) == (("quickstart",), ("quickstart_exact",))


def test_its_claim_is_about_all_its_runs_and_none_that_chose_it() -> None:
    sweep = declared("quickstart_exact")
    [claim] = sweep.hypotheses.values()
    runs = make_plan(sweep).runs
    assert len(runs) == 60
    assert {run.spec.core for run in runs} == {"exact"}
    assert {run.spec.seed for run in runs} == set(claim.test_seeds)
    assert set(claim.variants) == {run.variant for run in runs}
    assert not set(claim.test_seeds) & set(claim.selection_seeds)


def test_a_plan_pairs_the_runs_of_one_seed_where_they_share_their_start() -> None:
    """As the report will (tests/analysis/statistics/test_paired.py)."""
    cases = {"quickstart_exact": [], "main": ["core=exact"], "horizon": []}
    assert all(make_plan(declared(name), more).is_paired(name) for name, more in cases.items())
    assert not make_plan(declared("main"), ["core=verl"]).is_paired("main")
    assert not make_plan(declared("quickstart"), ["model.warm_start.seed=0"]).is_paired("quickstart")
