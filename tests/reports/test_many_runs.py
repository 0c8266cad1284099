"""Reports of very many runs: what is drawn and listed is bounded, and the rest is counted."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.reports.figures.curves import FEW, MOST_VARIANTS, curves_info, diagnostics_info, draw_line
from cppo_lab.reports.figures.drawing import PanelsInfo
from cppo_lab.reports.sections import Scored, Section, run_groups
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
    many = made(1, FEW + 1)
    fallen = MadeRun("v0000", seed=900, scores=both({10: 0.5, 20: 0.01}), status=schema.COLLAPSED)
    more_fallen = [*many, fallen, replace(fallen, seed=901)]
    # Each of few with its dot.
    for runs, count in ((many[1:], 2 * FEW + 1), (many, 1), (more_fallen, 2)):
        info = curves_info(scored(runs), "Curves")
        assert lines_drawn(info) == count and info.panels[0].lines[0].band == "interval"


def test_figures_show_the_best_of_very_many_variants_and_say_so() -> None:
    board = scored(made(MOST_VARIANTS + 5, 1))
    curves = curves_info(board, "Curves")
    for info in (curves, diagnostics_info(board, "Traces")):
        assert len(info.keys) == MOST_VARIANTS
        assert f"the best {MOST_VARIANTS} of {MOST_VARIANTS + 5} variants" in info.source
    assert [line.variant for line in curves.panels[0].lines] == [*board.variants[5:]]
    assert "best" not in curves_info(scored(made(MOST_VARIANTS, 1)), "Curves").source


def test_every_cell_of_a_long_list_of_runs_has_an_equal_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cppo_lab.reports.sections.MANY", 20)
    for variants, seeds, listed in ((4, 10, 5), (2, 10, 10)):
        groups = run_groups(Scored("demo", "Demo", scored(made(variants, seeds)), "sqlite://"))
        assert {(len(group["runs"]), group["left_out"]) for group in groups} == {(listed, seeds - listed)}


def test_the_page_of_very_many_variants_is_bounded_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cppo_lab.reports.build.MOST_ROWS", 10)
    monkeypatch.setattr("cppo_lab.reports.sections.MANY", 12)
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
        monkeypatch.setattr("cppo_lab.reports.sweep.exact_section", lambda _scored, section=section: section)
        html = page_of(scored(made(15, 1)))[1]
        assert f'8 more comparisons: <a href="{link}">' in html and f'id="{link[1:]}"' in html


def test_gaps_that_differ_in_seeds_are_one_and_a_long_list_is_cut_and_counted() -> None:
    runs = made(26, 4)
    present = [run for run in runs if run.seed == 1]
    board = scored(present, gaps=[run for run in runs if run not in present])
    _, html = page_of(board)
    for text in (
        "of which 78 have no result yet",
        "and 18 more runs",
        "v0019 on chain, seeds 0, 2, 3 (missing); and 18 more runs.",  # below the table
        "and are not ranked; other tables are of the runs with a result.",
    ):
        assert text in html
    assert html.count(" on chain, seeds 0, 2, 3 (missing)</li>") == 20
    assert "of which 1 has no result yet" in page_of(scored(runs[:1], gaps=runs[1:2]))[1]
    _, html = page_of(scored(runs[:1], gaps=runs[1:4]))
    assert "result yet: v0000 on chain, seeds 1 to 3 (missing)." in html
