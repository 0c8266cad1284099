"""Studies: who works on which trial, what is drawn, and what a study may go on with."""

import contextlib
import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from cppo_lab.errors import UserError
from cppo_lab.sweep.search import tune
from cppo_lab.sweep.search.declare import Scalar
from cppo_lab.sweep.search.space import Tuning
from cppo_lab.sweep.search.storage import storage_url
from cppo_lab.sweep.search.study import OWNER, SearchStudy, find_trials
from cppo_lab.sweep.search.tune import _follow, _summary
from tests.servers.forked import context
from tests.sweep.made_search import made_tuning, search_values

KINDS = {"sqlite": "sqlite:///optuna.db", "journal": "studies.journal"}


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, workspace: Path) -> str:
    return storage_url(KINDS[request.param])


def opened(tuning: Tuning, url: str) -> SearchStudy:
    return SearchStudy(tuning, url, Path("runs").resolve())


def test_claims_are_held_once_and_end_with_the_budget(url: str) -> None:
    tuning = made_tuning()
    one, other = opened(tuning, url), opened(tuning, url)
    with contextlib.ExitStack() as stack:
        claims = [stack.enter_context(study.claim()) for study in (one, other, other, one)]
        assert [claim.number for claim in claims if claim] == [0, 1, 2, 3]
        assert not any(claim.adopted for claim in claims if claim)
        assert stack.enter_context(other.claim()) is None  # all are held, none is left
    assert len(one.study.get_trials()) == 4


def test_a_trial_whose_worker_is_gone_is_adopted_with_its_point(url: str) -> None:
    tuning = made_tuning()
    one, other = opened(tuning, url), opened(tuning, url)
    with one.claim() as claim:
        assert claim
        point = one.draw(claim.trial)
        one.score(claim.trial, 0, 0.5)
    with other.claim() as claim:
        assert claim
        assert (claim.number, claim.adopted) == (0, True)
        assert other.draw(claim.trial) == point
        assert other.curve(0) == {0: 0.5}
        other.study.tell(claim.trial, [0.1])
    with one.claim() as claim:
        assert claim
        assert (claim.number, claim.adopted) == (1, False)


def test_a_point_half_drawn_is_drawn_to_its_end(url: str) -> None:
    tuning = made_tuning()
    study, whole = opened(tuning, url), opened(made_tuning(study="whole"), url)
    with whole.claim() as claim:
        assert claim
        point = whole.draw(claim.trial)
    with study.claim() as claim:
        assert claim
        claim.trial.suggest_float("rule.delta_b", 0.002, 0.05, log=True)
    with study.claim() as claim:
        assert claim
        again = study.draw(claim.trial)
    assert again.keys() == point.keys()
    assert again["rule.delta_b"] == point["rule.delta_b"]


def test_the_trials_of_another_machine_are_left_alone(url: str) -> None:
    study = opened(made_tuning(), url)
    with study.claim() as claim:
        assert claim
        claim.trial.set_user_attr(OWNER, "elsewhere:/runs/searches/tune-mini_base")
    with study.claim() as claim:
        assert claim
        assert claim.number == 1


def test_start_up_points_depend_on_the_trial_alone(workspace: Path) -> None:
    """Whichever worker draws them, and in whatever order the others end."""
    tuning = made_tuning()
    drawn: list[list[dict[str, Scalar]]] = []
    for url in ("sqlite:///a.db", "sqlite:///b.db"):
        studies = [opened(tuning, storage_url(url)) for _ in range(2)]
        points = []
        for number in range(4):
            study = studies[number % (1 + len(drawn))]
            with study.claim() as claim:
                assert claim
                points.append(study.draw(claim.trial))
                study.study.tell(claim.trial, [0.1])
        drawn.append(points)
    assert drawn[0] == drawn[1]
    assert len({str(point) for point in drawn[0]}) == 4


def test_values_on_a_grid_are_those_that_people_type(workspace: Path) -> None:
    tuning = made_tuning(search_values(trials=30, sampler={"name": "random"}))
    study = opened(tuning, storage_url())
    seen = set()
    for _ in range(30):
        with study.claim() as claim:
            assert claim
            seen.add(study.draw(claim.trial)["rule.w_min"])
            study.study.tell(claim.trial, [0.1])
    assert len(seen) > 5
    assert all(len(str(value)) <= 4 for value in seen)


def test_many_claims_at_once_take_each_trial_once(url: str) -> None:
    tuning = made_tuning(search_values(trials=12))
    numbers: list[int] = []

    def work() -> None:
        study = opened(tuning, url)
        while True:
            with study.claim() as claim:
                if claim is None:
                    return
                numbers.append(claim.number)
                study.draw(claim.trial)
                study.study.tell(claim.trial, [0.1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(12))
    trials = opened(tuning, url).study.get_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 12


def _open_anew(place: str, tuning: Tuning, url: str) -> None:
    with contextlib.chdir(place):
        SearchStudy(tuning, url, Path(place) / "runs")


def test_processes_that_start_together_on_a_new_storage_do_not_collide(workspace: Path) -> None:
    arguments = (str(workspace), made_tuning(), storage_url())
    processes = [context().Process(target=_open_anew, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(optuna.get_all_study_names("sqlite:///optuna.db")) == 1


def test_the_budget_can_be_raised_and_lowered(url: str) -> None:
    def claimed(trials: int) -> Iterator[int]:
        study = opened(made_tuning(trials=trials), url)
        while True:
            with study.claim() as claim:
                if claim is None:
                    return
                study.study.tell(claim.trial, state=TrialState.FAIL)  # a failure counts
                yield claim.number

    assert list(claimed(2)) == [0, 1]
    assert list(claimed(5)) == [2, 3, 4]
    assert list(claimed(3)) == []
    assert len(find_trials(made_tuning(trials=3), url)) == 3


@pytest.mark.parametrize(
    ("changes", "overrides", "message"),
    [
        ({"objectives": ["best_score"]}, [], r"objectives was \['final_score'\], is \['best_score'\]"),
        (
            {"parameters": {"rule.w_min": {"low": 0.4, "high": 1.0, "step": 0.05}}},
            [],
            r"search.parameters.rule.delta_b was \{low: 0.002, high: 0.05, log: True\}, is not there \(and 1 more\)",
        ),
        ({}, ["training.t_stop=8"], "training.t_stop was 4, is 8:"),
        ({}, ["seed=0,1"], r"seeds was \[0\], is \[0, 1\]"),
    ],
)
def test_a_study_goes_on_with_its_own_definition_only(
    url: str, changes: dict[str, object], overrides: list[str], message: str
) -> None:
    opened(made_tuning(), url)
    other = made_tuning(search_values(**changes), *overrides)
    for attempt in (lambda: opened(other, url), lambda: find_trials(other, url)):
        with pytest.raises(UserError, match=message) as caught:
            attempt()
        assert "give this search a study of its own with --study NAME" in str(caught.value)
        assert "\n" not in str(caught.value)
    opened(made_tuning(search_values(**changes), *overrides, study="other"), url)
    # What may change: the sampler, the pruner, the budget.
    opened(made_tuning(search_values(sampler={"name": "random"}, pruner={"name": "median"}, trials=9)), url)


def test_a_study_that_is_not_there_has_no_trials_and_gets_no_file(url: str, workspace: Path) -> None:
    assert find_trials(made_tuning(), url) == []
    assert [path.name for path in workspace.iterdir()] == ["tune.yaml"]


def test_a_server_that_is_away_is_one_line_without_the_password(workspace: Path) -> None:
    with pytest.raises(UserError) as caught:
        opened(made_tuning(), "postgresql+psycopg://me:s3cret@127.0.0.1:1/db")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_storage_may_come_from_the_environment(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTUNA_STORAGE", "sqlite:///mine.db")
    assert storage_url() == f"sqlite:///{workspace / 'mine.db'}"
    assert storage_url("x.journal") == str(workspace / "x.journal")


def test_choices_and_whole_numbers_are_drawn_as_they_were_declared(workspace: Path) -> None:
    parameters = {"rollout.staleness": {"low": 0, "high": 2}, "rule.w_min": {"choices": [0.5, 0.75]}}
    tuning = made_tuning(search_values(trials=12, parameters=parameters, sampler={"name": "random"}))
    study, seen = opened(tuning, storage_url()), []
    for _ in range(12):
        with study.claim() as claim:
            assert claim
            seen.append(study.draw(claim.trial))
            study.study.tell(claim.trial, [0.1])
    assert {point["rule.w_min"] for point in seen} == {0.5, 0.75}
    numbers = [point["rollout.staleness"] for point in seen]
    assert set(numbers) == {0, 1, 2}
    assert all(isinstance(number, int) for number in numbers)


def test_a_storage_without_this_study_has_no_trials(url: str) -> None:
    with opened(made_tuning(study="another"), url).claim() as claim:
        assert claim
    assert find_trials(made_tuning(), url) == []


def test_trials_of_another_machine_are_named_at_the_end(url: str) -> None:
    tuning = made_tuning()
    study = opened(tuning, url)
    with study.claim() as claim:
        assert claim
        claim.trial.set_user_attr(OWNER, "elsewhere:/runs/searches/tune-mini_base")
    lines = _summary(tuning, find_trials(tuning, url), study.folder).splitlines()
    said = "trials 0 are with workers of elsewhere:/runs/searches/tune-mini_base: continue them there"
    assert lines[1] == said
    assert lines[2].startswith("run the same command to continue; workers' logs: ")


def test_a_journal_line_that_is_being_written_is_not_refused(workspace: Path) -> None:
    tuning, url = made_tuning(), storage_url("studies.journal")
    with opened(tuning, url).claim() as claim:
        assert claim
    with Path("studies.journal").open("a") as file:
        file.write('{"op_code": 4, "wor')
    assert [trial.number for trial in find_trials(tuning, url)] == [0, 1, 2, 3]


def test_a_trial_that_its_worker_ended_meanwhile_is_not_adopted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = made_tuning()
    one, other = opened(tuning, url), opened(tuning, url)
    with one.claim() as claim:
        assert claim and claim.number == 0
    hold = SearchStudy._held

    def ended_meanwhile(study: SearchStudy, number: int, stack: contextlib.ExitStack) -> bool:
        if number == 0 and one._state(0) is TrialState.RUNNING:
            one.study.tell(0, [0.5])
        return hold(study, number, stack)

    monkeypatch.setattr(SearchStudy, "_held", ended_meanwhile)
    with other.claim() as claim:
        assert claim
        assert (claim.number, claim.adopted) == (1, False)
    assert one.study.get_trials()[0].values == [0.5]


@pytest.mark.parametrize("moment", ["_held", "_note"])
def test_a_trial_that_another_machine_claims_meanwhile_is_left_to_it(
    url: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As on a shared file system whose locks do not reach from one machine to the other."""
    tuning = made_tuning()
    one, other = opened(tuning, url), opened(tuning, url)
    action = getattr(SearchStudy, moment)

    def claimed_meanwhile(study: SearchStudy, trial: Any, *arguments: Any) -> Any:
        if trial in (0, one.study.get_trials()[0]):
            one.study._storage.set_trial_state_values(one.study.get_trials()[0]._trial_id, TrialState.RUNNING)
        return action(study, trial, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SearchStudy, moment, claimed_meanwhile)
        with other.claim() as claim:
            assert claim
            assert (claim.number, claim.adopted) == (1, False)
            lock = other.lock_file(0)
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is not held here any more


def test_workers_are_followed_while_the_queue_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault is said once, and each new state of the queue."""
    job = SimpleNamespace(job="7", state="RUNNING")
    answers: Iterator[Any] = iter([UserError("squeue is away"), UserError("squeue is away"), {"w": job}, {}])

    def asked(launcher: str, runs: Path) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(tune, "jobs_in_queue", asked)
    monkeypatch.setattr(tune, "FOLLOW_SECONDS", 0.0)
    glances: list[None] = []
    worker: Any = SimpleNamespace(name="w", folder=Path("runs/w"))
    watch: Any = SimpleNamespace(glance=lambda: glances.append(None))
    launcher: Any = SimpleNamespace(name="slurm", title="Slurm")
    _follow([worker], watch, launcher)
    assert capsys.readouterr().err.splitlines() == ["squeue is away", "Slurm: 7 running"]
    assert len(glances) == 3
