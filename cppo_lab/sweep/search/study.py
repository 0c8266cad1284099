"""The Optuna study of a search: created once, continued only with an equal definition, and with its trials claimed one
by one.
"""

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from cppo_lab.files import open_lock
from cppo_lab.runs.folder import ensure_folder_tag
from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.search.compatibility import require_equal
from cppo_lab.sweep.search.samplers import make_pruner, make_sampler, suggest
from cppo_lab.sweep.search.space import Tuning, tidy
from cppo_lab.sweep.search.storage import exclusive, file_of, open_storage

# User attributes of a study and of its trials.
DEFINITION, SEARCH_RUN = "definition", "mlflow_id"
OWNER, MLFLOW_ID, REASON, RUN_IDS = "owner", "mlflow_id", "reason", "run_ids"


def searches_folder(runs: Path) -> Path:
    """The folder for locks and logs of searches, below the folder of all runs."""
    return runs / "searches"


@dataclass(frozen=True)
class TrialClaim:
    """A trial that is claimed by this process."""

    trial: Trial
    number: int
    adopted: bool


class SearchStudy:
    """A worker's access to the study of a search. `folder` has its locks, on this machine."""

    def __init__(self, tuning: Tuning, url: str, runs: Path) -> None:
        """Open the study, or create it.

        Raises UserError if a study of that name has a different definition, or the storage cannot be used.
        """
        self.tuning, self.url = tuning, url
        self.folder = searches_folder(runs) / tuning.study
        storage = open_storage(url)
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(url):
            self.study = optuna.create_study(
                storage=storage,
                study_name=tuning.study,
                directions=["maximize"] * len(tuning.search.search.objectives),
                pruner=make_pruner(tuning),
                load_if_exists=True,
            )
            known = self.study.user_attrs.get(DEFINITION)
            if known is None:
                self.study.set_user_attr(DEFINITION, tuning.definition())
        require_equal(tuning, known, url)

    def trials(self) -> list[FrozenTrial]:
        """The trials of this search's budget, by number; those that have not begun are WAITING."""
        found = self.study.get_trials(deepcopy=False)
        return [trial for trial in found if trial.number < self.tuning.trials]

    @contextlib.contextmanager
    def claim(self) -> Iterator[TrialClaim | None]:
        """Claim a trial: one whose worker died, or else the next; None if there is none.

        The claim is a file lock, which the kernel releases when this process ends.
        """
        with contextlib.ExitStack() as stack:
            yield self._adopt(stack) or self._begin(stack)

    def _adopt(self, stack: contextlib.ExitStack) -> TrialClaim | None:
        """A trial in state RUNNING whose lock is free; those of other machines are left alone."""
        ours = ensure_folder_tag(self.folder)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get(OWNER) != ours or not self._held(trial.number, stack):
                continue
            # Its worker may have finished it in the meantime.
            if self._state(trial.number) is TrialState.RUNNING:
                return self._claimed(trial, adopted=True)
            stack.close()
        return None

    def abandoned(self) -> list[FrozenTrial]:
        """Trials in state RUNNING on this machine without a working process."""
        ours, found = ensure_folder_tag(self.folder), []
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            with contextlib.ExitStack() as stack:
                if trial.user_attrs.get(OWNER) == ours and self._held(trial.number, stack):
                    found.append(trial)
        return found

    def _begin(self, stack: contextlib.ExitStack) -> TrialClaim | None:
        """The next waiting trial. All trials of the budget are created in advance, so that their number limits the
        claims.
        """
        with exclusive(self.url):
            for _ in range(self.tuning.trials - len(self.study.get_trials(deepcopy=False))):
                self.study.add_trial(create_trial(state=TrialState.WAITING))
            for trial in self.trials():
                if trial.state is not TrialState.WAITING or not self._held(trial.number, stack):
                    continue
                if (
                    self._state(trial.number) is not TrialState.WAITING
                ):  # claimed by another machine meanwhile
                    stack.close()
                    continue
                self._note(trial, OWNER, ensure_folder_tag(self.folder))
                if self.study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                    self._note(trial, OWNER, ensure_folder_tag(self.folder))
                    return self._claimed(trial, adopted=False)
                stack.close()  # another machine was first
        return None

    def _note(self, trial: FrozenTrial, key: str, value: Any) -> None:
        self.study._storage.set_trial_user_attr(trial._trial_id, key, value)

    def _state(self, number: int) -> TrialState:
        return self.study.get_trials(deepcopy=False)[number].state

    def _held(self, number: int, stack: contextlib.ExitStack) -> bool:
        """Take the lock of a trial; False if another process has it."""
        file = stack.enter_context(open_lock(self.lock_file(number)))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stack.close()
            return False
        return True

    def lock_file(self, number: int) -> Path:
        """The file that is locked while a process works on a trial."""
        return self.folder / f"trial-{number}.lock"

    def _claimed(self, trial: FrozenTrial, adopted: bool) -> TrialClaim:
        self.study.sampler = make_sampler(self.tuning, trial.number)
        return TrialClaim(Trial(self.study, trial._trial_id), trial.number, adopted)

    def draw(self, trial: Trial) -> dict[str, Scalar]:
        """The trial's point; values that are not drawn yet are drawn now."""
        point: dict[str, Scalar] = {}
        for key, one in self.tuning.space.items():
            point[key] = tidy(suggest(trial, key, one, self.tuning.is_whole(key)))
        return point

    def score(self, trial: Trial, step: int, value: float) -> None:
        """Record a point of the curve that is used for pruning."""
        if len(self.study.directions) == 1:
            trial.report(value, step)
        else:  # `report` refuses it; the report page still draws the curve
            self.study._storage.set_trial_intermediate_value(trial._trial_id, step, value)

    def curve(self, number: int) -> dict[int, float]:
        """The points recorded so far."""
        return dict(self.study.get_trials(deepcopy=False)[number].intermediate_values)


def find_trials(tuning: Tuning, url: str) -> list[FrozenTrial]:
    """The existing trials of a search. Writes nothing; a missing file has no study.

    Raises UserError as opening the study does.
    """
    path = file_of(url)
    if path is not None and not path.is_file():
        return []
    try:
        study = optuna.load_study(study_name=tuning.study, storage=open_storage(url))
    except KeyError:
        return []
    require_equal(tuning, study.user_attrs.get(DEFINITION), url)
    return [trial for trial in study.get_trials(deepcopy=False) if trial.number < tuning.trials]


def held_by_others(trials: Sequence[FrozenTrial], folder: Path) -> list[FrozenTrial]:
    """Running trials that belong to workers of other machines or folders."""
    ours = ensure_folder_tag(folder)
    return [one for one in trials if one.state is TrialState.RUNNING and one.user_attrs.get(OWNER) != ours]
