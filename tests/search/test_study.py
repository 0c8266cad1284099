"""Studies: who works on which trial, what is drawn, and what a study may go on with."""

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
import yaml
from mlflow.exceptions import MlflowException
from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState, create_trial
from sqlalchemy.exc import OperationalError

from cppo_lab.errors import UserError
from cppo_lab.search import study as module
from cppo_lab.search import worker as working
from cppo_lab.search.space import Tuning
from cppo_lab.search.study import Lost, SearchStudy, TrialClaim, find_trials, storage_url, values_of
from cppo_lab.sweep.file import Scalar
from tests.conftest import user_error
from tests.search.made_search import made_tuning, search_values
from tests.tracking.test_client import interrupted_everywhere

DONE, FAILED = TrialState.COMPLETE, TrialState.FAIL


@pytest.fixture(params=["sqlite:///optuna.db", "studies.journal"])
def url(request: pytest.FixtureRequest, workspace: Path) -> str:
    return storage_url(request.param)


def opened(tuning: Tuning, url: str) -> SearchStudy:
    return SearchStudy(tuning, url, Path("runs").resolve())


@contextlib.contextmanager
def claimed(study: SearchStudy) -> Iterator[TrialClaim]:
    with study.claim() as claim:
        assert claim
        yield claim


def worked(study: SearchStudy) -> dict[int, dict[str, Scalar]]:
    """The trials that a worker takes up to the last: their points by number."""
    points = {}
    while True:
        with study.claim() as claim:
            if claim is None:
                return points
            points[claim.number] = study.draw(claim.trial)
            study.end(claim.trial, DONE, [0.1])


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
    monkeypatch.setattr("cppo_lab.search.study.RDBStorage", Impatient)
    monkeypatch.setattr("cppo_lab.search.study.SILENT_SECONDS", -1)


def test_a_trial_whose_worker_is_silent_is_repeated_with_its_point_and_curve(url: str, silence: None) -> None:
    tuning = made_tuning()
    one, other, third = (opened(tuning, url) for _ in range(3))
    for step in (0, 2):  # who takes it up may die, too
        with claimed(one) as claim:
            assert claim.number == 0
            point = one.draw(claim.trial)
            one.score(claim.trial, step, 0.5)
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


@pytest.mark.parametrize("owner, step", [(optuna.storages, "fail_stale_trials"), (module, "_repeat")])
def test_a_process_killed_while_it_repeats_a_trial_loses_none(
    url: str, silence: None, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    """Also if the trial has failed, and nothing waits in its place."""
    tuning = made_tuning()
    with claimed(opened(tuning, url)):
        pass
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(owner, step, Mock(side_effect=SystemExit))
        opened(tuning, url).claim().__enter__()
    with claimed(opened(tuning, url)) as claim:
        assert claim.number == 0


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


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.WAITING])
def test_a_trial_of_version_0_1_whose_worker_was_killed_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch, state: TrialState
) -> None:
    """It has an owner and no sign of life; begun just now, it may have one that lives. One that was about to be claimed
    is claimed once: Optuna's heartbeat counts for it now.
    """
    study = opened(made_tuning(), url)
    study.study.add_trial(create_trial(state=state, user_attrs={"owner": "there:/runs", "run_ids": ["x"]}))
    with claimed(study) as claim:
        assert claim.number == (state is TrialState.RUNNING)
        monkeypatch.setattr("cppo_lab.search.study.SILENT_SECONDS", -1)
        with claimed(study) as second:
            if state is TrialState.RUNNING:
                assert (second.number, second.trial.user_attrs["run_ids"]) == (0, ["x"])
                assert "owner" not in second.trial.user_attrs
            elif url.startswith("sqlite"):
                assert second.number == 1


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
    tuning, drawn = made_tuning(), dict[int, dict[str, Scalar]]()
    one, *others = (opened(tuning, storage_url(f"sqlite:///{name}.db")) for name in "abb")
    for study in others * 2:
        with claimed(study) as claim:
            drawn[claim.number] = study.draw(claim.trial)
            study.end(claim.trial, DONE, [0.1])
    assert worked(one) == drawn and len({*map(str, drawn.values())}) == 4


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


@pytest.mark.parametrize(
    "sampler, pruner, kinds",
    [
        ("tpe", "median", (TPESampler, MedianPruner)),
        ("nsga2", "hyperband", (NSGAIISampler, HyperbandPruner)),
        ("random", "none", (RandomSampler, NopPruner)),
    ],
)
def test_sampler_and_pruner_are_those_that_are_declared(
    sampler: str, pruner: str, kinds: tuple[type, type], workspace: Path
) -> None:
    values = search_values(sampler={"name": sampler}, pruner={"name": pruner})
    study = opened(made_tuning(values), storage_url())
    with claimed(study):
        assert (type(study.study.sampler), type(study.study.pruner)) == kinds


def test_values_are_drawn_as_they_were_declared(workspace: Path) -> None:
    parameters = yaml.safe_load("""
        rollout.staleness: {low: 0, high: 2}
        rule.w_min: {choices: [0.5, 0.75]}
        rule.delta_b: {low: 0.05, high: 0.5, step: 0.05}
    """)
    values = search_values(trials=15, parameters=parameters, sampler={"name": "random"})
    points = worked(opened(made_tuning(values), storage_url())).values()
    staleness, w_min, delta_b = ({str(point[key]) for point in points} for key in parameters)
    assert (staleness, w_min) == ({"0", "1", "2"}, {"0.5", "0.75"}) and len(delta_b) > 5
    assert max(map(len, delta_b)) <= 4  # as people type them


def test_many_workers_that_begin_at_once_take_each_trial_once(url: str) -> None:
    tuning = made_tuning(search_values(trials=12))
    with ThreadPoolExecutor(4) as pool:
        taken = pool.map(lambda _: worked(opened(tuning, url)), range(4))
        assert sorted(itertools.chain(*taken)) == list(range(12))
    study = opened(tuning, url)
    assert [trial.state for trial in study.study.get_trials()] == [DONE] * 12
    assert len(optuna.get_all_study_names(study.storage)) == 1


def test_the_budget_can_be_raised_and_lowered(url: str, silence: None) -> None:
    def work(trials: int) -> list[int]:
        return [*worked(opened(made_tuning(trials=trials), url))]

    with claimed(opened(made_tuning(trials=2), url)):
        pass  # its repetition is the third trial for Optuna
    assert work(2) == [0, 1]
    with claimed(opened(made_tuning(trials=5), url)) as claim:
        assert claim.number == 2
    assert work(3) == [2]  # and not the fourth, which waits before it
    assert work(5) == [3, 4]
    assert work(3) == []
    assert len(find_trials(made_tuning(trials=3), url)) == 3


def test_a_study_goes_on_with_its_own_definition_only(url: str) -> None:
    opened(made_tuning(), url)
    w_min = {"rule.w_min": {"low": 0.4, "high": 1.0, "step": 0.05}}
    for number, (changes, overrides, message) in enumerate(
        (
            ({"objectives": ["best_score"]}, [], r"objectives was \['final_score'\], is \['best_score'\]"),
            (
                {"parameters": w_min},
                [],
                r"rule.delta_b was \{low: 0.002, high: 0.05, log: True\}, is not there \(and 1 more\)",
            ),
            ({}, ["training.t_stop=8"], "training.t_stop was 4, is 8:"),
            ({}, ["seed=0,1"], r"seeds was \[0\], is \[0, 1\]"),
        )
    ):
        other = made_tuning(search_values(**changes), *overrides)
        for attempt in (opened, find_trials):
            with user_error(f"{message}.*give this search a study of its own with --study NAME"):
                attempt(other, url)
        opened(replace(other, study=f"other{number}"), url)
    # What may change: the sampler, the pruner, the budget.
    opened(made_tuning(search_values(sampler={"name": "random"}, pruner={"name": "median"}, trials=9)), url)


def test_a_study_that_is_not_there_has_no_trials(url: str, workspace: Path) -> None:
    assert find_trials(made_tuning(), url) == []
    assert [path.name for path in workspace.iterdir()] == ["tune.yaml"]  # and gets no file
    with claimed(opened(made_tuning(study="another"), url)):
        assert find_trials(made_tuning(), url) == []


def test_a_storage_is_named_by_the_environment_or_refused_in_a_line_without_its_password(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTUNA_STORAGE", "sqlite:///mine.db")
    assert storage_url() == f"sqlite:///{workspace / 'mine.db'}"
    assert storage_url("x.journal") == str(workspace / "x.journal")
    with user_error(r"me:\*\*\*@127.0.0.1:1/db") as caught:
        opened(made_tuning(), "postgresql+psycopg://me:s3cret@127.0.0.1:1/db")
    assert "s3cret" not in str(caught.value)


def test_a_storage_and_a_store_that_go_away_are_said_in_a_line(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(made_tuning(), storage_url())
    state = working._SearchState(study, f"sqlite:///{workspace / 'mlflow.db'}")
    with user_error("tracking store .* cannot be used: gone"), state.writing():
        raise MlflowException("gone")
    monkeypatch.setattr(
        study.study, "get_trials", Mock(side_effect=OperationalError("SELECT 1", {}, OSError("gone")))
    )
    with user_error("storage sqlite:.* cannot be used: .*gone"):
        study.trials()


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

    monkeypatch.setattr("cppo_lab.search.study.SearchStudy._id", claimed_meanwhile)
    with claimed(other) as claim:
        assert claim.number == 1
    assert one.study.get_trials()[0].values == ([0.5] if ended else None)


def test_workers_are_followed_while_the_queue_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault is said once, and each new state of the queue."""
    away = UserError("squeue is away")
    queues = Mock(side_effect=[away, away, {"w": Mock(job="7", state="RUNNING")}, {}])
    monkeypatch.setattr("cppo_lab.search.worker.jobs_in_queue", queues)
    monkeypatch.setattr("cppo_lab.search.worker.FOLLOW_SECONDS", 0.0)
    watch, worker = Mock(), Mock(folder=Path("runs/w"))
    worker.name = "w"
    working._follow([worker], watch, Mock(title="Slurm"))
    assert capsys.readouterr().err.splitlines() == ["squeue is away", "Slurm: 7 running"]
    assert watch.glance.call_count == 3


WHOLE = [(0, 0.1), (2, 0.5), (4, 0.3), (6, 0.4), (8, 0.6)]
COLLAPSED = [(0, 0.2), (2, 0.6), (4, 0.1)]


@pytest.mark.parametrize(
    "curves, values",
    [
        ([WHOLE], [(0.3 + 0.4 + 0.6) / 3, 0.6, 1.9 / 5, 0.8]),
        ([[(0, 0.1), (8, 0.5)]], [0.3, 0.5, 0.3, 1.0]),  # fewer than three validations: all of them
        # A collapse at step 4 of 8: steps 6 and 8 count as its last score.
        ([COLLAPSED], [0.1, 0.6, (0.2 + 0.6 + 0.1 * 3) / 5, 0.5]),
        ([WHOLE, COLLAPSED], [(1.3 / 3 + 0.1) / 2, 0.6, (1.9 + 1.1) / 10, 0.65]),
    ],
)
def test_objectives(curves: list[list[tuple[int, float]]], values: list[float]) -> None:
    objectives = ["final_score", "best_score", "mean_score", "stability"]
    assert values_of(objectives, curves, t_stop=8, every=2) == pytest.approx(values)
