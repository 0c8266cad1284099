"""The state of a run: a function of its folder and of its place in a queue, the same for every command.

No store is asked, and of a folder no more is read than the answer needs, so that thousands of runs take a second.
The first that applies decides:

1. status.json has a result: `done` or `collapsed`.
2. A process holds the run's lock, or the run's job has machines: `running`.
3. A job waits, or a living launcher has the run on its list: `queued`.
4. status.json says how the last attempt stopped, or else the end of the spool how it ended: `failed`, `partial`,
   `stopped`, or a result whose status a full disk did not take.
5. An attempt has begun and says nothing of its end: it was killed, `partial`. No attempt has begun: `missing`, with a
   reason if its launch withheld it.

`partial` comes from these, with their cause: `Recorder.interrupt` (SIGNAL or CANCELLED), `Recorder.begin` (a start from
scratch ends the record before), `attempt.abandon` (interrupted too often), `launch.queues` (CANCELLED, or DIED: it adds
the end that a killed process could not write), and rule 5 (the same before anybody has). Slurm's words for the end of a
job replace the reason of a DIED run (`explained`). Over a recorded `partial`, an active job shows as `running`, and a
result that was set aside as `done`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import one_line
from cppo_lab.runs.folder import ASIDE, Cause, is_cancelled, is_locked, read_status
from cppo_lab.runs.spool import Begin, Record, files, newest_record, read_lines

STARTING = "starting"
_SILENT = "its process ended without a word"
CAUSE_TEXTS = {  # of the causes that nobody could put into words: the process was gone
    Cause.DIED: f"{_SILENT} (killed, out of memory, or the machine went down)",
    Cause.CANCELLED: "cancelled",
}
OF_OTHERS = "of-"  # how the names of folders in ASIDE begin that hold the files of another run


@dataclass(frozen=True)
class RunState:
    """`state` is in schema.STATES; `reason` says why a run ended, what it waits for, or that it is starting.

    `step` of `t_stop` is the progress of a running, queued, partial or stopped run, if known. `cause`: see `Cause`;
    empty for runs that reached an end of their own.
    """

    state: str
    reason: str = ""
    code_version: str = ""
    step: int | None = None
    t_stop: int | None = None
    cause: str = ""

    @property
    def note(self) -> str:
        """Step and reason as a line."""
        progress = "" if self.step is None else f"step {self.step}/{self.t_stop or '?'}"
        reason = self.reason.removesuffix(f" at step {self.step}")  # recorded reasons may include the step
        return "; ".join(filter(None, (progress, one_line(reason))))


class RunFolder:
    """The contents of a run's folder. Each part is read once, on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def locked(self) -> bool:
        """Whether a living process trains the run."""
        return is_locked(self.path)

    @cached_property
    def cancelled(self) -> bool:
        """Whether the run was cancelled since its last start."""
        return is_cancelled(self.path)

    @cached_property
    def status(self) -> Mapping[str, Any]:
        """Its status.json; empty if it has none, or that of another run, whose folder was copied."""
        status = read_status(self.path)
        if status.get("status") and "run_id" not in status:  # as versions until 37ff870 wrote it
            for path in files(self.path)[-1:]:
                match next(read_lines(path), None):
                    case Begin(tags=tags), _:
                        status["run_id"] = tags.get(schema.TAG_RUN_ID, self.path.name)
                        status.setdefault("code_version", tags.get(schema.TAG_CODE_VERSION, ""))
        return status if status.get("run_id", self.path.name) == self.path.name else {}

    @cached_property
    def record(self) -> Record | None:
        """Its newest record; None if it has none."""
        record = newest_record(self.path)
        name = self.path.name
        return record if record and record.begin.tags.get(schema.TAG_RUN_ID, name) == name else None

    @property
    def is_empty(self) -> bool:
        """Whether no attempt at the run has left a record here."""
        return not self.status.get("record") and self.record is None

    @property
    def set_aside(self) -> list[Path]:
        """The folders of its results that were moved aside to be replaced, the newest first, named by their records."""
        folders = [path for path in self.path.glob(f"{ASIDE}/*") if not path.name.startswith(OF_OTHERS)]
        return sorted(folders, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    @property
    def result(self) -> Path | None:
        """The folder of its result: this one, or of the newest that was moved aside; None if there is none."""
        if self.status.get("status") in schema.FINISHED:
            return self.path
        finished = (path for path in self.set_aside if read_status(path).get("status") in schema.FINISHED)
        return next(finished, None)


@dataclass(frozen=True)
class QueueEntry:
    """The place of a run in a launcher's queue. `job` is the newest, as the queue's commands write it.

    `waits`: why it has not started; None if it is not pending. `active`: it has machines; `ending`: it gives them back.
    """

    job: str = ""
    kind: str = "job"  # what people call such a job
    waits: str | None = None
    active: bool = False
    ending: bool = False


@dataclass(frozen=True)
class Queued:
    """What the launchers have: `listed`, the runs on the lists of live ones, and the `places` of runs in a queue.

    `why_ended`: the queue's words for how the jobs of runs have ended, where it has any.
    """

    listed: Collection[str] = frozenset()
    places: Mapping[str, QueueEntry] = field(default_factory=dict)
    why_ended: Callable[[Sequence[str]], Mapping[str, str]] = lambda run_ids: {}

    def place(self, run_id: str) -> QueueEntry:
        """The place of a run."""
        return self.places.get(run_id, QueueEntry())


def states(runs: Path, run_ids: Iterable[str], queued: Queued) -> dict[str, RunState]:
    """The states of runs with the folder `runs`, with the queue's words for those that did not say why they ended."""
    return explained({run_id: state_of(RunFolder(runs / run_id), queued) for run_id in run_ids}, queued)


def explained(before: dict[str, RunState], queued: Queued) -> dict[str, RunState]:
    """The states, with the queue's words for runs that did not record why they ended; may ask its accounting."""
    silent = [
        run_id
        for run_id, state in before.items()
        if run_id in queued.places
        and ((state.state == schema.MISSING and not state.reason) or state.cause == Cause.DIED)
    ]
    after = dict(before)
    for run_id, words in (queued.why_ended(silent) if silent else {}).items():
        place = queued.place(run_id)
        after[run_id] = replace(before[run_id], reason=f"{place.kind} {place.job}: {words}")
    return after


def state_of(run: RunFolder, queued: Queued, replacing: bool = False) -> RunState:
    """The state of a run. `replacing`: a result that was moved aside does not count, since it is to be replaced."""
    state = _state_in_folder(run, queued.place(run.path.name), run.path.name in queued.listed)
    if replacing or state.state in {schema.RUNNING, *schema.FINISHED} or (place := run.result) is None:
        return state
    result = _result(read_status(place))
    stopped = f"{result.reason}; " if result.reason else ""
    return replace(result, reason=f"{stopped}its replacement is {state.state} ({state.note})")


def _state_in_folder(run: RunFolder, place: QueueEntry, listed: bool) -> RunState:
    """The state by the files of the folder itself, without a result that was moved aside."""
    status, recorded = run.status, run.status.get("status") or ""
    if recorded in schema.FINISHED:
        return _result(status)
    stopped = recorded in (schema.FAILED, schema.PARTIAL, schema.STOPPED)
    version, step, t_stop = status.get("code_version") or "", status.get("step"), status.get("t_stop")
    at = (None, None) if step is None or t_stop is None else (step, t_stop)
    # A cancelled run is over even while its job has machines; any other may be requeued.
    in_queue = (place.active or place.waits is not None) and not (stopped and run.cancelled)
    if run.locked or (place.active and in_queue):
        return RunState(schema.RUNNING, _activity(status, place), version, *at)
    if in_queue or (listed and not run.cancelled):
        return RunState(schema.QUEUED, place.waits or "", version, *at)
    if stopped:
        return _stopped(recorded, status.get("reason") or "", status.get("cause"), version, at)
    # A status without an end is older than the spool if the process was killed between the two; before its first
    # attempt a run has only been announced, without a time.
    begun = recorded == schema.RUNNING or not status or "seconds" in status
    record = run.record if begun else None
    if record is not None:
        tags = record.begin.tags
        version = tags.get(schema.TAG_CODE_VERSION, version)
        if at == (None, None):
            last = tags.get(schema.TAG_T_STOP, "")
            at = max(record.rows, default=None), int(last) if last.isdecimal() else None
        if record.end is not None:
            return _stopped(record.end.status, record.end.reason, None, version, at)
    elif recorded != schema.RUNNING:
        return RunState(schema.MISSING, status.get("reason") or "")  # the reason why it is held
    cause = Cause.CANCELLED if run.cancelled else Cause.DIED
    return _stopped(schema.PARTIAL, f"interrupted: {CAUSE_TEXTS[cause]}", cause, version, at)


def _result(status: Mapping[str, Any]) -> RunState:
    return RunState(status["status"], status.get("reason") or "", status.get("code_version") or "")


def _activity(status: Mapping[str, Any], place: QueueEntry) -> str:
    """What a live run does besides training."""
    if status.get("status") == schema.RUNNING:
        # The activity within a step changes too fast to show; before the first step it may take minutes.
        return "" if status.get("first_step") is not None else status.get("activity") or ""
    if place.ending:
        return "; ".join(filter(None, ("its job is ending", status.get("reason"))))
    return STARTING


def _stopped(
    state: str, reason: str, cause: str | None, version: str, at: tuple[int | None, int | None]
) -> RunState:
    """A recorded end. `cause`: None if it was not recorded, as in spools and by versions before 0.2.0."""
    if cause is None:
        cause = Cause.DIED if _SILENT in reason else ""
    step, t_stop = at if state in (schema.PARTIAL, schema.STOPPED) else (None, None)
    return RunState(state, reason, version, step, t_stop, cause)


def by_state(states: Iterable[str]) -> dict[str, int]:
    """The number of runs in each state that a run has, in the order of schema.STATES."""
    count = Counter(states)
    return {state: count[state] for state in schema.STATES if count[state]}


def counts(states: Iterable[str]) -> dict[str, int]:
    """How many runs are done (also collapsed), failed, and left."""
    names = list(states)
    done, failed = sum(state in schema.FINISHED for state in names), names.count(schema.FAILED)
    return {"done": done, "failed": failed, "left": len(names) - done - failed}
