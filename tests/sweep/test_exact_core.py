"""Every sweep that names models of the exact core composes on it, and what it cannot train is said."""

from cppo_lab.spec import ExactRun
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan


def test_the_papers_sweeps_compose() -> None:
    """The study's seven sweeps: as many runs as the paper has (`import_reference` finds 37)."""
    plan = make_plan(load_sweep("study"), ["core=exact", "seed=0"])
    assert all(isinstance(run.spec, ExactRun) for run in plan.runs)
    assert (len(plan.sweeps), len(plan.runs)) == (7, 37)


def test_binary_and_top_k_differ_on_the_wide_process() -> None:
    spec = compose(["core=exact", "model=exact_wide"]).run
    assert isinstance(spec, ExactRun)
    assert spec.divergence.k is not None and 2 < spec.divergence.k < spec.data.vocabulary == 64
