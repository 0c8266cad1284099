"""Studies: who works on which trial, what is drawn, and what a study may go on with."""

import contextlib
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState, create_trial

from cppo_lab.errors import UserError
from cppo_lab.search import study as module
from cppo_lab.search import tune
from cppo_lab.search.space import Tuning
from cppo_lab.search.study import Lost, SearchStudy, TrialClaim, find_trials, storage_url
from cppo_lab.search.tune import _follow
from cppo_lab.sweep.file import Scalar
from tests.search.made_search import made_tuning, search_values
from tests.servers.forked import context
from tests.tracking.test_client import interrupted_everywhere
from tests.waiting import CEILING_SECONDS

KINDS = {"sqlite": "sqlite:///optuna.db", "journal": "studies.journal"}
DONE, FAILED = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, workspace: Path) -> str:
    return storage_url(KINDS[request.param])


def opened(tuning: Tuning, url: str) -> SearchStudy:
    return SearchStudy(tuning, url, Path("runs").resolve())


@contextlib.contextmanager
def claimed(study: SearchStudy) -> Iterator[TrialClaim]:
    with study.claim() as claim:
        assert claim
        yield claim


def note(study: SearchStudy, trial: Trial, key: str, value: object) -> None:
    with study.writing():
        trial.set_user_attr(key, value)


class Impatient(RDBStorage):
    """Optuna's storage, for which every worker is dead that does not write at this moment."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named | {"grace_period": None})
        self.grace_period = -1


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RDBStorage", Impatient)
    monkeypatch.setattr(module, "SILENT_SECONDS", -1)


def test_claims_are_held_once_and_end_with_the_budget(url: str) -> None:
    tuning = made_tuning()
    one, other = opened(tuning, url), opened(tuning, url)
    with contextlib.ExitStack() as stack:
        claims = [stack.enter_context(claimed(study)) for study in (one, other, other, one)]
        assert [claim.number for claim in claims] == [0, 1, 2, 3]
        assert stack.enter_context(other.claim()) is None  # all are held, none is left


def test_a_trial_whose_worker_is_silent_is_repeated_with_its_point_and_curve(url: str, silence: None) -> None:
    tuning = made_tuning()
    one, other, third = (opened(tuning, url) for _ in range(3))
    for before in range(2):  # who takes it up may die, too
        with claimed(one) as claim:
            assert claim.number == 0
            point = one.draw(claim.trial)
            one.score(claim.trial, 2 * before, 0.5)
    with claimed(other) as repeated:
        assert (repeated.number, other.draw(repeated.trial)) == (0, point)
        assert other.trials()[0].intermediate_values == {0: 0.5, 2: 0.5}
        # The first worker was not dead: what it writes goes nowhere, and it learns of it.
        for write in (
            lambda: note(one, claim.trial, "run_ids", ["x"]),
            lambda: one.score(claim.trial, 4, 0.1),
            lambda: one.end(claim.trial, DONE, [0.9]),
            lambda: one.end(claim.trial, FAILED, reason="no memory"),
        ):
            with pytest.raises(Lost):
                write()
        other.end(repeated.trial, DONE, [0.1])
    with claimed(third) as claim:
        assert claim.number == 1
    trials = find_trials(tuning, url)
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert (trials[0].values, trials[0].state) == ([0.1], DONE)


def test_signs_of_life_come_from_a_thread_as_long_as_the_trial_is_held(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.01)
    study, signs, sign = opened(made_tuning(), url), threading.Semaphore(0), SearchStudy._sign

    def counted(study: SearchStudy, number: int) -> None:
        sign(study, number)
        signs.release()

    monkeypatch.setattr(SearchStudy, "_sign", counted)
    before = threading.active_count()
    with claimed(study):
        assert all(signs.acquire(timeout=CEILING_SECONDS) for _ in range(4))
    assert threading.active_count() == before


@pytest.mark.parametrize("moment", ["fail", "repeat"])
def test_a_process_killed_while_it_repeats_a_trial_loses_none(
    url: str, silence: None, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    tuning = made_tuning()
    with claimed(opened(tuning, url)) as claim:
        assert claim.number == 0

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        if moment == "repeat":  # the trial has failed, and nothing waits in its place
            patch.setattr(module, "_repeat", killed)
        else:
            patch.setattr(optuna.storages, "fail_stale_trials", killed)
        opened(tuning, url).claim().__enter__()
    with claimed(opened(tuning, url)) as claim:
        assert claim.number == 0


def test_an_exception_gives_the_trial_back_at_once(url: str) -> None:
    study = opened(made_tuning(), url)
    for interruption in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(interruption), claimed(study) as claim:
            assert claim.number == 0
            study.draw(claim.trial)
            raise interruption
    assert [trial.state for trial in study.trials()] == [TrialState.WAITING] * 4
    assert study.trials()[0].params


def test_a_failure_counts_and_a_worker_killed_while_it_prunes_has_not_failed(url: str, silence: None) -> None:
    study = opened(made_tuning(), url)
    with claimed(study) as claim:
        study.end(claim.trial, FAILED, reason="RuntimeError: no memory left")
    with claimed(study) as claim:
        assert claim.number == 1
        note(study, claim.trial, "reason", "pruned by the search at step 2")
    with claimed(study) as claim:
        assert claim.number == 1
        study.end(claim.trial, TrialState.PRUNED, reason="pruned by the search at step 2")
    states = [trial.state for trial in study.trials()]
    assert states == [FAILED, TrialState.PRUNED, TrialState.WAITING, TrialState.WAITING]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_of_version_0_1_whose_worker_was_killed_goes_on(workspace: Path, kind: str) -> None:
    """It has an owner and no sign of life; begun just now, it may have one that lives."""
    tuning, url = made_tuning(), storage_url(KINDS[kind])
    study = opened(tuning, url)
    attributes = {"owner": "there:/runs/searches/tune-mini_base", "run_ids": ["x"]}
    old = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
    study.study.add_trial(old)
    with claimed(study) as claim:
        assert claim.number == 1
        study.end(claim.trial, DONE, [0.1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SILENT_SECONDS", -1)
        with claimed(study) as claim:
            assert (claim.number, claim.trial.user_attrs["run_ids"]) == (0, ["x"])
            assert "owner" not in claim.trial.user_attrs


def test_a_trial_that_version_0_1_was_about_to_claim_is_claimed_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(made_tuning(), storage_url())
    study.study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={"owner": "there:/runs"}))
    with claimed(study) as claim:
        monkeypatch.setattr(module, "SILENT_SECONDS", -1)  # it is Optuna's heartbeat that counts for it now
        with claimed(study) as second:
            assert (claim.number, second.number) == (0, 1)


def test_a_point_half_drawn_is_drawn_to_its_end(url: str, silence: None) -> None:
    study, whole = opened(made_tuning(), url), opened(made_tuning(study="whole"), url)
    with claimed(whole) as claim:
        point = whole.draw(claim.trial)
    with claimed(study) as claim:
        claim.trial.suggest_float("rule.delta_b", 0.002, 0.05, log=True)
    with claimed(study) as claim:
        again = study.draw(claim.trial)
    assert again.keys() == point.keys()
    assert again["rule.delta_b"] == point["rule.delta_b"]


def test_start_up_points_depend_on_the_trial_alone(workspace: Path) -> None:
    """Whichever worker draws them, and in whatever order the others end."""
    tuning = made_tuning()
    drawn: list[list[dict[str, Scalar]]] = []
    for url in ("sqlite:///a.db", "sqlite:///b.db"):
        studies = [opened(tuning, storage_url(url)) for _ in range(2)]
        drawn.append([])
        for number in range(4):
            study = studies[number % len(drawn)]
            with claimed(study) as claim:
                drawn[-1].append(study.draw(claim.trial))
                study.end(claim.trial, DONE, [0.1])
    assert drawn[0] == drawn[1]
    assert len({str(point) for point in drawn[0]}) == 4


def test_an_interrupted_study_leaves_its_file_free(workspace: Path) -> None:
    values = search_values(pruner={"name": "median", "startup": 0})
    study, step = opened(made_tuning(values), storage_url()), count()
    with claimed(study) as claim:
        for action in (
            lambda: study.score(claim.trial, next(step), 0.5),
            lambda: note(study, claim.trial, "a", "b"),
            study.trials,
        ):
            assert interrupted_everywhere(workspace / "optuna.db", action) > 0


def test_values_are_drawn_as_they_were_declared(workspace: Path) -> None:
    parameters = {
        "rollout.staleness": {"low": 0, "high": 2},
        "rule.w_min": {"choices": [0.5, 0.75]},
        "rule.delta_b": {"low": 0.05, "high": 0.5, "step": 0.05},
    }
    values = search_values(trials=30, parameters=parameters, sampler={"name": "random"})
    study, points = opened(made_tuning(values), storage_url()), []
    for _ in range(30):
        with claimed(study) as claim:
            points.append(study.draw(claim.trial))
            study.end(claim.trial, DONE, [0.1])
    assert {point["rule.w_min"] for point in points} == {0.5, 0.75}
    assert {repr(point["rollout.staleness"]) for point in points} == {"0", "1", "2"}
    on_grid = {point["rule.delta_b"] for point in points}
    assert len(on_grid) > 5
    assert all(len(str(value)) <= 4 for value in on_grid)  # as people type them


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
                study.end(claim.trial, DONE, [0.1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(12))
    assert [trial.state for trial in opened(tuning, url).study.get_trials()] == [DONE] * 12


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


def test_the_budget_can_be_raised_and_lowered(url: str, silence: None) -> None:
    def work(trials: int) -> Iterator[int]:
        study = opened(made_tuning(trials=trials), url)
        while True:
            with study.claim() as claim:
                if claim is None:
                    return
                study.end(claim.trial, FAILED, reason="a failure counts")
                yield claim.number

    with claimed(opened(made_tuning(trials=2), url)):
        pass  # its repetition is the third trial for Optuna
    assert list(work(2)) == [0, 1]
    with claimed(opened(made_tuning(trials=5), url)) as claim:
        assert claim.number == 2
    assert list(work(3)) == [2]  # and not the fourth, which waits before it
    assert list(work(5)) == [3, 4]
    assert list(work(3)) == []
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


def test_a_study_that_is_not_there_has_no_trials(url: str, workspace: Path) -> None:
    assert find_trials(made_tuning(), url) == []
    assert [path.name for path in workspace.iterdir()] == ["tune.yaml"]  # and gets no file
    with claimed(opened(made_tuning(study="another"), url)):
        assert find_trials(made_tuning(), url) == []


def test_a_server_that_is_away_is_one_line_without_the_password(workspace: Path) -> None:
    with pytest.raises(UserError) as caught:
        opened(made_tuning(), "postgresql+psycopg://me:s3cret@127.0.0.1:1/db")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_storage_may_come_from_the_environment(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTUNA_STORAGE", "sqlite:///mine.db")
    assert storage_url() == f"sqlite:///{workspace / 'mine.db'}"
    assert storage_url("x.journal") == str(workspace / "x.journal")


def test_a_journal_line_that_is_being_written_is_not_refused(workspace: Path) -> None:
    tuning, url = made_tuning(), storage_url("studies.journal")
    with claimed(opened(tuning, url)):
        pass
    with Path("studies.journal").open("a") as file:
        file.write('{"op_code": 4, "wor')
    assert [trial.number for trial in find_trials(tuning, url)] == [0, 1, 2, 3]


@pytest.mark.parametrize("ended", [False, True])
def test_a_trial_that_another_machine_claims_meanwhile_is_left_to_it(
    url: str, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """As on a shared file system whose locks do not reach from one machine to the other."""
    tuning = made_tuning()
    one, other = opened(tuning, url), opened(tuning, url)
    identify = SearchStudy._id

    def claimed_meanwhile(study: SearchStudy, number: int) -> int:
        trial_id = identify(study, number)
        if number == 0 and one.study.get_trials()[0].state is TrialState.WAITING:
            one.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
            if ended:
                one.study.tell(0, [0.5])
        return trial_id

    monkeypatch.setattr(SearchStudy, "_id", claimed_meanwhile)
    with claimed(other) as claim:
        assert claim.number == 1
    assert one.study.get_trials()[0].values == ([0.5] if ended else None)


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
