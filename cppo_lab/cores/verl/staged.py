"""Passes the kept responses of a validated step from verl's trainer to the process that records the run.

The trainer writes them to a separate folder before it writes the row of the step (`steps`), outcomes last. The process
that reads the rows moves them to the run's files and then removes them. So the responses of a step are recorded once,
whichever of the two processes is killed, and the run's files have a single writer.
"""

import json
import re
import shutil
from pathlib import Path

from cppo_lab.answers import outcomes, texts, tokens
from cppo_lab.answers.records import Recording, StepAnswers
from cppo_lab.answers.texts import Texts
from cppo_lab.cores.base import MetricSink, Resources
from cppo_lab.files import read_plain, replace_file
from cppo_lab.spec import VerlRun

FOLDER = "verl_answers"  # in the run's folder
TAGS = "verl_tags.json"  # of the run, known once its rollout servers run
_OUTCOMES, _TEXTS, _TOKENS = "outcomes.npz", "texts.jsonl.gz", "tokens.npz"
_OF_STEP = re.compile(rf"(\d+)-{re.escape(_OUTCOMES)}")


def stage(folder: Path, answers: StepAnswers) -> None:
    """Write the responses of a validated step of the run in `folder`."""
    step = int(answers.outcomes.steps[-1])
    (folder / FOLDER).mkdir(exist_ok=True)
    if answers.tokens is not None:
        replace_file(_path(folder, step, _TOKENS), tokens.write(answers.tokens))
    if answers.samples:
        replace_file(_path(folder, step, _TEXTS), texts.write(Texts(step, tuple(answers.samples))))
    replace_file(_path(folder, step, _OUTCOMES), outcomes.write(answers.outcomes))


class HandOver:
    """Moves responses from the trainer's folder to the files of the run."""

    def __init__(self, spec: VerlRun, resources: Resources, sink: MetricSink) -> None:
        validations = 1 + spec.training.t_stop // spec.validation.every
        self._folder, self._sink = resources.folder, sink
        self._recording = Recording(
            resources.answers, resources.folder, validations, lambda name, content: sink.file(name, content)
        )

    def begin(self, step: int | None) -> None:
        """Resume from the checkpoint of `step`; None: from the beginning. Records of later steps are dropped.

        Steps that an earlier attempt's trainer has written, but that were not moved completely, are left to `add`.
        """
        last = -1 if step is None or not self._recording.keeps else step
        waiting = [staged for staged in self._steps() if staged <= last]
        for staged in set(self._steps()) - set(waiting):
            self._remove(staged)
        self._recording.begin(_before(min(waiting)) if waiting else step)

    def add(self, step: int) -> None:
        """Move what the trainer has written for `step`, if anything, and the tags that it has found."""
        tags = read_plain(self._folder / TAGS, 2**16)
        if tags is not None:
            for name, value in json.loads(tags).items():
                self._sink.tag(name, value)
            (self._folder / TAGS).unlink()
        waits = self._recording.keeps and step in self._steps()
        if waits and self._recording.add(_read(self._folder, step)):
            self._remove(step)

    def end(self) -> None:
        """Finish, after all steps were moved."""
        shutil.rmtree(self._folder / FOLDER, ignore_errors=True)

    def _steps(self) -> list[int]:
        """The steps that are written completely."""
        try:
            names = [path.name for path in (self._folder / FOLDER).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _OF_STEP.fullmatch(name)))

    def _remove(self, step: int) -> None:
        for name in (_OUTCOMES, _TEXTS, _TOKENS):
            _path(self._folder, step, name).unlink(missing_ok=True)


def _before(step: int) -> int | None:
    return step - 1 if step else None


def _path(folder: Path, step: int, name: str) -> Path:
    return folder / FOLDER / f"{step:06d}-{name}"


def _read(folder: Path, step: int) -> StepAnswers:
    """What the trainer has written for a step. Raises UserError for files that it did not write."""

    first, written, table = (
        read_plain(_path(folder, step, name), largest)
        for name, largest in (
            (_OUTCOMES, outcomes.LARGEST),
            (_TEXTS, texts.LARGEST),
            (_TOKENS, tokens.LARGEST),
        )
    )
    assert first is not None
    return StepAnswers(
        outcomes.read(first, str(_path(folder, step, _OUTCOMES))),
        () if written is None else texts.read(written, str(_path(folder, step, _TEXTS))).samples,
        None if table is None else tokens.read(table, str(_path(folder, step, _TOKENS))),
    )
