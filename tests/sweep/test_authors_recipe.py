"""The authors' released settings: every sweep can be planned under them."""

import pytest

from cppo_lab.sweep.file import ANY_CORE, Search, Sweep, load_sweep, shipped_sweeps
from cppo_lab.sweep.plan import make_plan


@pytest.mark.parametrize("core", ["mini", "verl"])
def test_every_sweep_composes_under_the_authors_recipe(core: str) -> None:
    """But the one that changes the recipe's choices itself, and those of the study, which are in it: the paper's on
    all models, the authors' on the first.
    """
    planned = 0
    for name in {*shipped_sweeps()} - {"recipe_choices", *load_sweep("study").sweeps}:
        declared = load_sweep(name)
        if isinstance(declared, Search):
            continue
        if isinstance(declared, Sweep) and not {core, ANY_CORE} & declared.models.keys():
            continue
        papers = [run.spec.model.name for run in make_plan(declared, [f"core={core}", "seed=0"]).runs]
        narrow = [f"core={core}", f"model={papers[0]}", "recipe=authors", "seed=0"]
        assert len(make_plan(declared, narrow).runs) == papers.count(papers[0]), name
        planned += 1
    assert planned > 5
