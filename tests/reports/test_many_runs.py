"""Reports of very many runs: what is drawn and listed is bounded, and the rest is counted."""

import pytest
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.reports import build, sections, sweep
from cppo_lab.reports.figures.curves import FEW, MOST_VARIANTS, curves_info, diagnostics_info, draw_line
from cppo_lab.reports.figures.drawing import PanelsInfo
from cppo_lab.reports.sections import MANY, Scored, Section, run_groups
from cppo_lab.reports.tables import main_table
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.reports.conftest import page_of

REWARD = "train/reward"


def made(variants: int, seeds: int) -> list[MadeRun]:
    """The higher the number of a variant, the better it is."""
    return [
        MadeRun(
            f"v{variant:04d}",
            seed=seed,
            scores=both({10: 0.1, 20: 0.2 + variant / 10_000 + seed / 100_000}),
            logged={REWARD: {1: float(variant), 2: float(seed)}},
        )
        for variant in range(variants)
        for seed in range(seeds)
    ]


def lines_drawn(info: PanelsInfo) -> int:
    axes = Figure().subplots()
    draw_line(axes, info.panels[0].lines[0], 3)
    return len(axes.lines)


def test_each_of_few_runs_is_drawn_and_of_many_the_mean_and_the_last_cross() -> None:
    few, many = (curves_info(scored(made(1, count)), "Curves") for count in (FEW, FEW + 1))
    assert (lines_drawn(few), lines_drawn(many)) == (2 * FEW + 1, 1)  # each with its dot
    assert few.panels[0].lines[0].band == many.panels[0].lines[0].band == "interval"
    fallen = [
        MadeRun("v0000", seed=seed, scores=both({10: 0.5, 20: 0.01}), status=schema.COLLAPSED)
        for seed in (900, 901)
    ]
    assert lines_drawn(curves_info(scored([*made(1, FEW + 1), *fallen]), "")) == 2


def test_figures_show_the_best_of_very_many_variants_and_say_so() -> None:
    board = scored(made(MOST_VARIANTS + 5, 1))
    curves, traces = curves_info(board, "Curves"), diagnostics_info(board, "Traces")
    for info in (curves, traces):
        assert len(info.keys) == MOST_VARIANTS
        assert f"the best {MOST_VARIANTS} of {MOST_VARIANTS + 5} variants" in info.source
    shown = [line.variant for line in curves.panels[0].lines]
    assert shown == [f"v{number:04d}" for number in range(5, MOST_VARIANTS + 5)]
    assert "best" not in curves_info(scored(made(MOST_VARIANTS, 1)), "Curves").source


@pytest.mark.parametrize(
    "runs, listed, left_out", [(made(4, MANY // 2), MANY // 4, MANY // 4), (made(2, 10), 10, 0)]
)
def test_every_cell_of_a_long_list_of_runs_has_an_equal_share(
    runs: list[MadeRun], listed: int, left_out: int
) -> None:
    groups = run_groups(Scored("demo", "Demo", scored(runs), "sqlite://"))
    assert {(len(group["runs"]), group["left_out"]) for group in groups} == {(listed, left_out)}


def test_the_page_of_very_many_variants_is_bounded_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "MOST_ROWS", 10)
    monkeypatch.setattr(sections, "MANY", 12)
    assert "1 run." in page_of(scored(made(1, 1)))[1]
    few, small, large = (page_of(scored(made(count, 1)))[1] for count in (3, 15, 30))
    assert "more, in the" not in few
    assert len(large) < 1.05 * len(small)
    assert "and 20 more, in the files beside this page" in large
    assert "and 18 more, in the CSV file of runs beside this page" in large


def test_further_answers_are_linked_in_a_part_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without claims about scores there are no verdicts, if there is a section on errors."""
    errors = Section("exact", "Errors", {"figures": ()}, macro="figure_list")
    for section, link in ((errors, "#exact"), (None, "#verdicts")):
        monkeypatch.setattr(sweep, "exact_section", lambda _scored, section=section: section)
        html = page_of(scored(made(15, 1)))[1]
        assert f'8 more comparisons: <a href="{link}">' in html and f'id="{link[1:]}"' in html


def test_gaps_that_differ_in_seeds_are_one_and_a_long_list_is_cut_and_counted() -> None:
    runs = made(26, 4)
    present = [run for run in runs if run.seed == 1]
    board = scored(present, gaps=[run for run in runs if run not in present])
    _, html = page_of(board)
    assert "of which 78 have no result yet" in html
    assert html.count(" on chain, seeds 0, 2, 3 (missing)</li>") == 20
    assert "and 18 more runs" in html
    assert "v0019 on chain, seeds 0, 2, 3 (missing); and 18 more runs." in " ".join(
        main_table(board, "Main").notes
    )
    assert "of which 1 has no result yet" in page_of(scored(runs[:1], gaps=runs[1:2]))[1]
    assert "and are not ranked; other tables are of the runs with a result." in html
    one_cell = scored(runs[:1], gaps=runs[1:4])
    assert "result yet: v0000 on chain, seeds 1 to 3 (missing)." in " ".join(
        main_table(one_cell, "Main").notes
    )
