"""What verl's trainer leaves in a run's folder: rows of metrics, checkpoints, kept responses; where it resumes."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.answers import ANSWERS
from cppo_lab.answers.records import Recording, StepAnswers
from cppo_lab.core_records import BEST_CHECKPOINT, CHECKPOINTS, MetricSink, Resources
from cppo_lab.errors import UserError, say
from cppo_lab.files import appearing, open_append, open_lock, open_plain, read_plain, replace_file
from cppo_lab.schema import Outcome
from cppo_lab.spec import AnswersSpec, VerlRun


def score_name(spec: VerlRun) -> str:
    """The metric by which a run's checkpoints are compared and its collapse is seen."""
    return schema.validation_metric(schema.MEAN, spec.validation.samples)


_GRADES = ("acc", "acc_success_only", "reward")  # what verl reports of a reward besides its parts


def validation_metrics(
    reported: Mapping[str, float], benchmarks: Sequence[str], samples: int, parts: bool = False
) -> dict[str, float]:
    """Avg@`samples` on every benchmark and their unweighted mean; and, where graded, the share by the `Answer:` rule.

    `parts`: also the means of all else that the user's reward returns.

    Raises ValueError if verl reports no score for a benchmark: an incomplete validation does not count.
    """
    metrics: dict[str, float] = {}
    named = {"acc": schema.validation_metric, "answer_rule": schema.answer_rule_metric}
    for key, value in reported.items():
        match key.split("/"):
            case [_, benchmark, variable, mean] if benchmark in benchmarks and mean == f"mean@{samples}":
                if variable in named:
                    metrics[named[variable](benchmark, samples)] = float(value)
                if parts and variable not in _GRADES:
                    metrics[schema.reward_metric(variable, benchmark)] = float(value)
    names = [schema.validation_metric(benchmark, samples) for benchmark in benchmarks]
    missing = [name for name in names if name not in metrics]
    if missing:
        raise ValueError(f"verl's validation has no {', '.join(missing)} among {', '.join(sorted(reported))}")
    scores = [metrics[name] for name in names]
    return metrics | {schema.validation_metric(schema.MEAN, samples): sum(scores) / len(scores)}


# The record that verl's trainer leaves in the run's folder: a line of metrics per training step, and how it ended.
#
# The trainer runs in a separate process, perhaps on another machine. It appends to a file, which is flushed to disk
# before the next step begins; the process that started it follows the file and passes the rows to the recorder. So no
# step is lost if the store is down or either process ends. The file also shows which checkpoints are complete: that of
# step n, if row n exists, since the trainer writes the row after the checkpoint.

Row = tuple[int, dict[str, float]]
ROWS_FILE, OUTCOME = "verl_steps.jsonl", "verl_outcome.json"
PREFIX = "global_step_"
LONGEST_LINE = 16 * 2**20  # bytes of a line or an outcome, which have some thousand
MALFORMED = (ValueError, OverflowError, LookupError, TypeError, AttributeError, RecursionError)
PATIENCE_SECONDS = 60.0  # Ray's processes outlive a killed driver by a few seconds


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the write lock of this record; wait for the trainer of a dead attempt to end.

    Raises UserError if it does not end in time.
    """
    with open_lock(folder / "verl_trainer.lock") as lock:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"a trainer of an earlier attempt still writes to {folder}: end its Ray processes"
                    ) from None
                time.sleep(0.2)
        yield


def collapse_of(spec: VerlRun, past: Sequence[Row]) -> str:
    """Why a run with these rows has collapsed; empty if it has not."""
    training, name = spec.training, score_name(spec)
    scores = [row[name] for _, row in past if name in row]
    return schema.collapse_reason(scores, training.collapse_share, training.collapse_patience)


def append_row(folder: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add the row of `step`; it is on disk when this returns."""
    with open_append(folder / ROWS_FILE) as file:
        file.write(json.dumps({"step": step, "metrics": dict(metrics)}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def rows(folder: Path, offset: int = 0) -> Iterator[tuple[int, Row]]:
    """(offset after the line, row) for every complete line from byte `offset` on.

    Reading stops at a line cut off by a kill, or of another format: nothing after it is known to be complete.
    """
    file = open_plain(folder / ROWS_FILE)
    if file is None:
        return
    with file:
        file.seek(offset)
        while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
            try:
                values = json.loads(line)
                row = int(values["step"]), {name: float(value) for name, value in values["metrics"].items()}
            except MALFORMED:
                return
            offset += len(line)
            yield offset, row


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The folder of verl's checkpoint of `step`."""
    return folder / CHECKPOINTS / f"{PREFIX}{step}"


def is_whole(checkpoint: Path) -> bool:
    """Whether the checkpoint of a recorded step still has its weights: verl deletes only the weights of old ones."""
    return (checkpoint / "actor").is_dir()


def drop_rows_after(folder: Path, step: int | None) -> list[Row]:
    """Drop the rows after `step` (all, if None), which will be retrained, and an outcome; return the others."""
    (folder / OUTCOME).unlink(missing_ok=True)
    past = [] if step is None else [row for _, row in rows(folder) if row[0] <= step]
    lines = (json.dumps({"step": number, "metrics": metrics}) + "\n" for number, metrics in past)
    replace_file(folder / ROWS_FILE, "".join(lines), synced=True)
    return past


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write how training ended."""
    replace_file(folder / OUTCOME, json.dumps(vars(outcome)))


def read_outcome(folder: Path) -> Outcome | None:
    """How training ended; None if it has not ended, or the file is not what `write_outcome` writes."""
    try:
        values = json.loads(read_plain(folder / OUTCOME, LONGEST_LINE) or b"")
        status, step, reason = values["status"], values["step"], values["reason"]
        return Outcome(status, int(step), str(reason)) if status in (schema.DONE, schema.COLLAPSED) else None
    except MALFORMED:
        return None


# verl's checkpoints: the last that can be read is located, the best by validation is kept, those of dead attempts are
# deleted.

STEP = "step"  # in the kept checkpoint: a file with its step
SIZES = "sizes.json"  # in each checkpoint: the bytes of its files, by name
# What a checkpoint has for resuming alone: verl's FSDP engine has files, its Megatron engine has folders.
STATE = ("optim*", "extra*", "data.pt", "verl_traces.pt", "transfer_queue", SIZES)
READERS = 8  # threads; a checksum takes longer than reading from a fast disk


def seal(checkpoint: Path) -> None:
    """Write the sizes of the files of a checkpoint that has been written; they are on disk when this returns.

    The files themselves may not be: a power cut then leaves them shorter, which `size_fault` sees.
    """
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in _files(checkpoint)}
    replace_file(checkpoint / SIZES, json.dumps(sizes), synced=True)


def last_readable(folder: Path) -> int | None:
    """The last step to resume from: its row and its checkpoint exist, and the checkpoint can be read.

    Says which are damaged, and how. Deletes nothing. Raises UserError if a checkpoint cannot be read for another
    reason.
    """
    steps = sorted({step for _, (step, _) in rows(folder) if is_whole(checkpoint_folder(folder, step))})
    while steps:
        step = steps.pop()
        path = checkpoint_folder(folder, step)
        try:
            why = size_fault(path) or _content_fault(path)
        except OSError as error:
            raise UserError(
                f"checkpoint {path} cannot be read: {error}. Nothing was deleted: repair the disk and retry the run, "
                "or remove that folder to resume from an older checkpoint"
            ) from error
        if not why:
            return step
        instead = f"training resumes from step {steps[-1]}" if steps else "training starts over"
        say(f"checkpoint {path} is ignored, {instead}: {why}")
    return None


def size_fault(checkpoint: Path) -> str:
    """Which file is not as long as when the checkpoint was written; empty for none, or if that was not recorded."""
    try:
        sizes: Any = json.loads((checkpoint / SIZES).read_bytes())
    except FileNotFoundError:  # of an earlier release
        return ""
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, dict):
        return f"{SIZES} is damaged"
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    return ""


def _content_fault(checkpoint: Path) -> str:
    """Which file of torch's format or JSON cannot be read, and why; empty for none. Megatron's shards are not read."""
    from cppo_lab.cores.checkpoint import check_whole  # imports torch

    def fault(path: Path) -> str:
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            elif path.suffix == ".pt":
                with path.open("rb") as file:
                    check_whole(file)
        except (ValueError, RecursionError) as error:
            return f"{path.name}: {error}"
        return ""

    with ThreadPoolExecutor(READERS) as pool:
        return next(filter(None, pool.map(fault, _files(checkpoint))), "")


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def keep_best(folder: Path, metric: str) -> None:
    """Keep the weights of the recorded step with the highest `metric`, on a tie the later; nothing resumes from them.

    By hard links, which need no space while verl keeps them too. The record determines which checkpoint it is, so
    calling this again after a kill completes the work. Steps whose checkpoint is lost do not count.
    """
    kept_step = best_step(folder)
    scores = [
        (row[metric], step)
        for _, (step, row) in rows(folder)
        if step and metric in row and (step == kept_step or is_whole(checkpoint_folder(folder, step)))
    ]
    if not scores:
        return
    step = max(scores)[1]
    source = checkpoint_folder(folder, step)
    if kept_step == step or size_fault(source):
        return
    partial, best = folder / f"{BEST_CHECKPOINT}.partial", folder / BEST_CHECKPOINT
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, ignore=shutil.ignore_patterns(*STATE), copy_function=_link_or_copy)
    (partial / STEP).write_text(f"{step}\n", encoding="utf-8")
    shutil.rmtree(best, ignore_errors=True)
    partial.replace(best)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or no links
        shutil.copy2(source, target)


def best_step(folder: Path) -> int | None:
    """The step of the checkpoint that is kept; None if there is none."""
    try:
        return int((folder / BEST_CHECKPOINT / STEP).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # ValueError: a kill during its removal
        return None


def resume(folder: Path, metric: str) -> tuple[int | None, list[Row]]:
    """Where a run resumes: the step of its checkpoint (None: from the beginning), and the rows up to it.

    What later steps have left is dropped, and the best checkpoint by `metric` is the one that is kept.
    """
    step = last_readable(folder)
    recorded = drop_rows_after(folder, step)
    kept_step = best_step(folder)
    if kept_step is not None and (step is None or kept_step > step):
        # Its files may be those of a damaged checkpoint. They stay until another checkpoint replaces them.
        (folder / BEST_CHECKPOINT / STEP).unlink()
    keep_best(folder, metric)
    # A trainer does not know the checkpoints of an earlier attempt. It would overwrite the files of one with the same
    # step, to which the best checkpoint may be linked.
    for saved in _saved(folder):
        if saved != step:
            shutil.rmtree(checkpoint_folder(folder, saved))
    take_request(folder)  # of an attempt that ended before it was saved
    return step, recorded


def make_room(folder: Path, most: int | None) -> None:
    """Make room for a checkpoint among `most` (2 or more; None: any number). verl does not know the checkpoint
    of an earlier attempt, from which this attempt has resumed.
    """
    for step in _saved(folder)[: 1 - most] if most else ():
        # A network disk's `.nfs*` ends no run.
        shutil.rmtree(checkpoint_folder(folder, step), ignore_errors=True)


def _saved(folder: Path) -> list[int]:
    """The steps of all checkpoints; folders of other names are a user's."""
    names = (path.name.removeprefix(PREFIX) for path in (folder / CHECKPOINTS).glob(f"{PREFIX}*"))
    return sorted(int(name) for name in names if name.isdecimal())


# A checkpoint out of turn, so that a job that is ended loses no step.

REQUEST = "verl_save"  # in the run's folder: the trainer is to save the step that it is in
SLACK = 1.3  # times the seconds of a step: what the next may take
# To end Ray, record the end and requeue the job; and more than Slurm's warnings are early.
RESERVED_SECONDS = 60.0


def take_request(folder: Path) -> bool:
    """Whether a checkpoint has been requested since the last call; the request is then gone."""
    try:
        (folder / REQUEST).unlink()
    except FileNotFoundError:
        return False
    return True


def await_step(folder: Path, deadline: float | None, grace_seconds: float) -> None:
    """Have the trainer save the step that it is in, and wait for its row while there is time before `deadline`.

    If that step is past its save, the next is meant. At a warning that comes more than `grace_seconds` before the
    deadline, and by more than Slurm is early, the job is being preempted: how much time it has left is unknown.
    """
    before = _newest(folder)
    seconds = (deadline or 0.0) - RESERVED_SECONDS - time.time()
    if before is None or not 0 < seconds < grace_seconds + RESERVED_SECONDS:
        return
    (folder / REQUEST).touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (folder / OUTCOME).exists():
        if (folder / REQUEST).exists():
            before = _newest(folder)
        elif _newest(folder) != before:
            return
        time.sleep(0.2)


def _newest(folder: Path) -> int | None:
    return max((step for _, (step, _) in rows(folder)), default=None)


# The way of the answer files of a validated step, from verl's trainer to the process that records the run.
#
# The trainer writes them to a separate folder, which appears as a whole, before it writes the row of the step. The
# process that reads the rows moves them to the run's files. So the responses of a step are recorded once, whichever of
# the two processes is killed.

STAGED = "verl_answers"  # in the run's folder: a folder for each step
TAGS_FILE = "verl_tags.json"  # of the run, known once its rollout servers run
LONGEST_FILE = 2**30  # bytes


class Staging:
    """The trainer's side. It resumes from the checkpoint of `step` (None: from the beginning), and drops the records of
    later steps.
    """

    def __init__(self, spec: VerlRun, settings: AnswersSpec, folder: Path, step: int | None) -> None:
        validations = 1 + spec.training.t_stop // spec.validation.every
        self._folder, self._place = folder, Path()
        self._recording = Recording(settings, folder, validations, self._write)
        self._recording.begin(step)

    def add(self, step: int, answers: StepAnswers) -> None:
        """Write the answers of a validated step."""
        (self._folder / STAGED).mkdir(exist_ok=True)
        with appearing(_staged(self._folder, step), replace=True) as self._place:
            self._recording.add(answers)

    def _write(self, name: str, content: bytes) -> None:
        (self._place / Path(name).name).write_bytes(content)


class HandOver:
    """Passes what the trainer has written to the recorder, and is the only writer of the run's files of answers."""

    def __init__(self, resources: Resources, sink: MetricSink) -> None:
        self._folder, self._sink, self._answers = resources.folder, sink, resources.answers

    def begin(self, step: int | None) -> None:
        """Resume from the checkpoint of `step`; None: from the beginning. Drops what is staged of later steps; that of
        earlier ones, which an earlier attempt has not moved completely, is left to `add`.
        """
        last = -1 if step is None or self._answers is None or not self._answers.keep else step
        for place in (self._folder / STAGED).glob("*"):
            if not place.name.isdecimal() or int(place.name) > last:
                shutil.rmtree(place, ignore_errors=True)

    def add(self, row: Row) -> None:
        """Record a row, and before it, so that they are on disk earlier, the answer files of its step, if any, and the
        tags that the trainer has found.
        """
        step, metrics = row
        tags = read_plain(self._folder / TAGS_FILE, 2**16)
        if tags is not None:
            for name, value in json.loads(tags).items():
                self._sink.tag(name, value)
            (self._folder / TAGS_FILE).unlink()
        place = _staged(self._folder, step)
        contents = ((path.name, read_plain(path, LONGEST_FILE)) for path in sorted(place.glob("*")))
        saved = [
            self._sink.file(f"{ANSWERS}/{name}", content) for name, content in contents if content is not None
        ]
        if False not in saved:
            shutil.rmtree(place, ignore_errors=True)
        self._sink.log(step, metrics)

    def end(self) -> None:
        """Finish, after all steps were moved."""
        shutil.rmtree(self._folder / STAGED, ignore_errors=True)


def _staged(folder: Path, step: int) -> Path:
    return folder / STAGED / f"{step:06d}"
