"""Tables of runs on narrow terminals, and in colour."""

import re
from typing import Any

import pytest

from cppo_lab.runs.state import RunState
from cppo_lab.sweep.columns import aligned
from cppo_lab.sweep.status import RunStatus, ordered, table
from cppo_lab.sweep.table import run_table, score_table
from tests.jobs import planned

LONG = "RuntimeError: the disk of the node is full and nothing can be written any more"


def run(number: int, state: str = "done", reason: str = "", **numbers: Any) -> RunStatus:
    numbers["variants"] = {"grid": f"cppo w_min=0.{number}"}
    return RunStatus(f"{number}{'a' * 11}", "cppo", "mini_base", number, state, reason, **numbers)


RUNS = [
    run(1, score=0.25, best=0.5, best_step=20, step=40, t_stop=60, hours=1.25, job="node17:12345"),
    run(2, "failed", LONG, step=20, t_stop=60),
    run(3, "missing"),
]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_what_matters_is_there_at_every_width(width: int) -> None:
    _, done, failed, _ = lines = table(RUNS, width).splitlines()
    assert max(map(len, lines)) <= width
    assert re.match("1aaaaaaa.* cppo w_min=0.1 .* done ", done) and re.search(" failed .* Runtime", failed)
    assert ("node17" in done) == (width >= 140)


def test_a_plan_has_ids_variants_and_states_on_the_narrowest_terminals() -> None:
    runs = planned("quickstart variant=cppo rule.w_min=0.6,0.8").runs
    lines = run_table(runs, {run.run_id: RunState("missing") for run in runs}, {}, 40).splitlines()
    for run, line in zip(runs, lines[1:], strict=True):
        assert line.split() == [run.run_id[:8], *run.variant.split(), str(run.spec.seed), "missing"]


@pytest.mark.parametrize(
    "scores, interval",
    [
        ((0.0, 0.1, 0.02), "[0.0, 17.1]"),  # 4.0 ± 13.1
        ((0.98, 1.0, 0.9), "[82.9, 100.0]"),
        ((0.5, 0.52), "50.0 to 52.0"),
    ],
)
def test_intervals_after_a_launch_end_as_those_of_reports(scores: tuple[float, ...], interval: str) -> None:
    seeds = ",".join(map(str, range(len(scores))))
    runs = planned(f"quickstart variant=cppo seed={seeds}").runs
    statuses = {
        run.run_id: {"status": "done", "final_mean": score, "best": score}
        for run, score in zip(runs, scores, strict=True)
    }
    assert f" %  {interval} " in re.sub(" +(?=[0-9.]+ %$)", " ", score_table(runs, statuses).splitlines()[1])


def test_without_a_terminal_everything_is_there_and_nothing_is_coloured() -> None:
    text = table(RUNS)
    assert LONG in text and "25.0    50.0" in text and "node17:12345" in text
    assert "\x1b" not in table(RUNS, 80)
    painted = table(RUNS, 80, coloured=True)
    assert "\x1b[31mfailed\x1b[0m" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == table(RUNS, 80)
    cut_off = aligned(["run id", "state"], [["a" * 12, "failed"]], width=12, coloured=True)
    assert "\x1b" not in cut_off
    assert max(map(len, cut_off.splitlines())) <= 12


def test_runs_are_ordered_by_a_score() -> None:
    runs = [run(1, score=0.2, best=0.9), run(2), run(3, score=0.4, best=0.5), run(4, score=0.3, best=0.6)]
    for score, seeds in (("last", [3, 4, 1, 2]), ("best", [1, 4, 3, 2]), (None, [1, 2, 3, 4])):
        assert [run.seed for run in ordered(runs, score)] == seeds


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_the_environment_forbids_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cppo_lab.cli import command as terminal

    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.coloured()
    monkeypatch.setenv(name, value)
    assert not terminal.coloured()


def test_short_ids_still_tell_runs_apart() -> None:
    rows = [[f"{'0' * 9}{number}00", "done", "-" * 30] for number in range(3)]
    lines = aligned(["run id", "state", "last"], rows, width=45, spare=("run id", "last")).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["0000000000", "0000000001", "0000000002"]


def test_a_long_name_is_cut_in_its_middle_and_not_the_state() -> None:
    rows = [["a name that says much w_min=0.8", "done"], ["b", "failed"]]
    assert aligned(["variant", "state"], rows, width=23).splitlines() == [
        "variant          state",
        "a name …min=0.8  done",
        "b                failed",
    ]


def test_chinese_names_take_two_columns_a_sign() -> None:
    rows = [["模型 8", "done", "1"], ["cppo", "failed", "10"]]
    assert aligned(["variant", "state", "n"], rows, right={"n"}, width=80, coloured=True).splitlines() == [
        "variant  state    n",
        "模型 8   \x1b[32mdone\x1b[0m     1",
        "cppo     \x1b[31mfailed\x1b[0m  10",
    ]
