"""The authors' released settings: every sweep can be planned under them."""

import pytest

from cppo_lab.sweep.file import ANY_CORE, Search, Sweep, load_sweep, shipped_sweeps
from cppo_lab.sweep.plan import make_plan


@pytest.mark.parametrize("core", ["mini", "verl"])
def test_every_sweep_composes_under_the_authors_recipe(core: str) -> None:
    """But the one that changes the recipe's choices itself."""
    planned = 0
    for name in shipped_sweeps():
        declared = load_sweep(name)
        if name == "recipe_choices" or isinstance(declared, Search):
            continue
        if isinstance(declared, Sweep) and not {core, ANY_CORE} & declared.models.keys():
            continue
        papers, authors = (
            make_plan(declared, [f"core={core}", f"recipe={one}"]) for one in ("paper", "authors")
        )
        assert len(papers.runs) == len(authors.runs), name
        planned += 1
    assert planned > 10
