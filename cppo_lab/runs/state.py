"""The state of a run: one function of its folder and of its place in the queue, which every command shares.

No store is asked, and only the needed files of a folder are read, so that thousands of runs take a second.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import one_line
from cppo_lab.runs.folder import ASIDE, Cause, is_cancelled, is_held, read_status
from cppo_lab.runs.spool import Begin, Record, files, newest_record, read_lines

STARTING = "starting"
_SILENT = "its process ended without a word"
WORDS = {  # of the causes that nobody could put into words: the process was gone
    Cause.DIED: f"{_SILENT} (killed, out of memory, or the machine went down)",
    Cause.CANCELLED: "cancelled",
}
OF_OTHERS = "of-"  # how the names of folders in ASIDE begin that hold the files of another run


@dataclass(frozen=True)
class RunState:
    """`state` is one of schema.STATES; `reason` says why a run ended, what it waits for, or that it is starting.

    `step` of `t_stop` is the progress of a running, queued or partial run, if known. `cause`: see `Cause`; empty for
    runs that were not stopped.
    """

    state: str
    reason: str = ""
    code_version: str = ""
    step: int | None = None
    t_stop: int | None = None
    cause: str = ""

    @property
    def note(self) -> str:
        """Step and reason on one line."""
        reached = "" if self.step is None else f"step {self.step}/{self.t_stop or '?'}"
        reason = self.reason.removesuffix(f" at step {self.step}")  # recorded reasons may include the step
        return "; ".join(part for part in (reached, one_line(reason)) if part)


class RunFolder:
    """The contents of a run's folder. Each part is read once, on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def held(self) -> bool:
        """Whether a living process trains the run."""
        return is_held(self.path)

    @cached_property
    def status(self) -> Mapping[str, Any]:
        """Its status.json; empty if it has none, or that of another run, whose folder was copied."""
        status = read_status(self.path)
        if status.get("status") and "run_id" not in status:  # as versions until 37ff870 wrote it
            tags = self._begin.tags if self._begin is not None else {}
            added = {"run_id": schema.TAG_RUN_ID, "code_version": schema.TAG_CODE_VERSION}
            status |= {name: tags[tag] for name, tag in added.items() if tag in tags}
        return status if status.get("run_id", self.path.name) == self.path.name else {}

    @property
    def _begin(self) -> Begin | None:
        """The first line of its newest attempt."""
        paths = files(self.path)
        line, _ = next(read_lines(paths[-1]), (None, 0)) if paths else (None, 0)
        return line if isinstance(line, Begin) else None

    @cached_property
    def cancelled(self) -> bool:
        """Whether the run was cancelled since its last start."""
        return is_cancelled(self.path)

    @cached_property
    def record(self) -> Record | None:
        """Its newest record; None if it has none of its own."""
        record = newest_record(self.path)
        name = self.path.name
        return record if record and record.begin.tags.get(schema.TAG_RUN_ID, name) == name else None

    @property
    def is_empty(self) -> bool:
        """Whether no attempt at the run has left a record here."""
        return not self.status.get("record") and self.record is None

    def set_aside(self) -> "RunState | None":
        """The newest result that was moved aside to be replaced; None if there is none."""
        results = [
            path
            for path in self.path.glob(f"{ASIDE}/*")
            if not path.name.startswith(OF_OTHERS) and read_status(path).get("status") in schema.FINISHED
        ]
        if not results:
            return None
        status = read_status(max(results, key=lambda path: (path / "status.json").stat().st_mtime_ns))
        return RunState(status["status"], status.get("reason") or "", status.get("code_version") or "")


@dataclass(frozen=True)
class Place:
    """The place of a run in a launcher's queue. `job` is the newest one, as the queue's commands write it.

    `waits`: why it has not started; None if it is not pending. `active`: it has machines; `ending`: it gives them back.
    """

    job: str = ""
    kind: str = "job"  # what people call such a job
    waits: str | None = None
    active: bool = False
    ending: bool = False


NOWHERE = Place()


def _unknown(run_ids: Sequence[str]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Queued:
    """What the launchers have: `listed`, the runs on the lists of live ones, and the `places` of runs in a queue.

    `why_ended`: the queue's own words for how the jobs of runs have ended, where it has any.
    """

    listed: Collection[str] = frozenset()
    places: Mapping[str, Place] = field(default_factory=dict)
    why_ended: Callable[[Sequence[str]], Mapping[str, str]] = _unknown

    def place(self, run_id: str) -> Place:
        """The place of a run."""
        return self.places.get(run_id, NOWHERE)


def state_of(run: RunFolder, queued: Queued, replacing: bool = False) -> RunState:
    """The state of a run. `replacing`: a result that was moved aside does not count, since it is to be replaced."""
    live = _live_state(run, queued.place(run.path.name), run.path.name in queued.listed)
    if replacing or live.state in {schema.RUNNING, *schema.FINISHED} or (ended := run.set_aside()) is None:
        return live
    stopped = f"{ended.reason}; " if ended.reason else ""
    return replace(ended, reason=f"{stopped}its replacement is {live.state} ({live.note})")


def states(runs: Path, run_ids: Iterable[str], queued: Queued) -> dict[str, RunState]:
    """The states of runs with the folder `runs`, with the queue's words for those that did not say why they ended."""
    return explained({run_id: state_of(RunFolder(runs / run_id), queued) for run_id in run_ids}, queued)


def explained(before: dict[str, RunState], queued: Queued) -> dict[str, RunState]:
    """The states, with the queue's words for runs that did not record why they ended; may ask its accounting."""
    silent = [
        run_id
        for run_id, state in before.items()
        if run_id in queued.places
        and (state.state == schema.MISSING or (state.state == schema.PARTIAL and state.cause == Cause.DIED))
    ]
    words = queued.why_ended(silent) if silent else {}
    places = {run_id: queued.place(run_id) for run_id in words}
    return before | {
        run_id: replace(before[run_id], reason=f"{place.kind} {place.job}: {words[run_id]}")
        for run_id, place in places.items()
    }


def _live_state(run: RunFolder, place: Place, listed: bool) -> RunState:
    """The state of the files that are not set aside."""
    recorded, version = run.status.get("status"), run.status.get("code_version") or ""
    if recorded in schema.FINISHED:
        return RunState(recorded, run.status.get("reason") or "", version)
    # A cancelled run is over; that of another job with machines may be requeued.
    over = recorded in (schema.FAILED, schema.PARTIAL) and run.cancelled
    if run.held or (place.active and not over):
        return RunState(schema.RUNNING, _activity(run, place), version, *_progress(run))
    if place.waits is not None:
        return RunState(schema.QUEUED, place.waits, version, *_progress(run))
    if listed and not run.cancelled:
        return RunState(schema.QUEUED, "", version, *_progress(run))
    return _ended(run)


def _activity(run: RunFolder, place: Place) -> str:
    """What a live run does besides training."""
    if run.status.get("status") == schema.RUNNING:
        # The activity within a step changes too fast to show; before the first step it may take minutes.
        return "" if run.status.get("first_step") is not None else str(run.status.get("activity") or "")
    if place.ending:
        return "; ".join(filter(None, ["its job is ending", run.status.get("reason")]))
    return STARTING


def _progress(run: RunFolder) -> tuple[int | None, int | None]:
    """Step and last step."""
    step, t_stop = run.status.get("step"), run.status.get("t_stop")
    return (step, t_stop) if isinstance(step, int) and isinstance(t_stop, int) else (None, None)


def _ended(run: RunFolder) -> RunState:
    """The state of a run that is neither trained nor queued."""
    status = run.status
    recorded, version = status.get("status"), status.get("code_version") or ""
    if recorded in (schema.FAILED, schema.PARTIAL):
        reason = status.get("reason") or ""
        return _stopped(recorded, reason, status.get("cause"), version, _progress(run))
    # A status without an end is older than the spool if the process was killed between the two; before its first
    # attempt a run has only been announced, without a time.
    begun = recorded == schema.RUNNING or not status or "seconds" in status
    record = run.record if begun else None
    if record is None and recorded != schema.RUNNING:
        return RunState(schema.MISSING)
    at = _progress(run)
    if record is not None:
        version = record.begin.tags.get(schema.TAG_CODE_VERSION, version)
        if at == (None, None):
            t_stop = record.begin.tags.get(schema.TAG_T_STOP, "")
            at = max(record.rows, default=None), int(t_stop) if t_stop.isdecimal() else None
        if record.end is not None:
            return _stopped(record.end.status, record.end.reason, None, version, at)
    cause = Cause.CANCELLED if run.cancelled else Cause.DIED
    return _stopped(schema.PARTIAL, f"interrupted: {WORDS[cause]}", cause, version, at)


def _stopped(
    state: str, reason: str, cause: str | None, version: str, at: tuple[int | None, int | None]
) -> RunState:
    """A recorded end. `cause`: None if it was not recorded, as in spools and by versions before 0.2.0."""
    if cause is None:
        cause = Cause.DIED if _SILENT in reason else ""
    return RunState(state, reason, version, *(at if state == schema.PARTIAL else (None, None)), cause=cause)
