"""The files of a run's answers: written step by step, within their size limit; and read, wherever they are: in the
run's folder, or in a tracking store (`cppo_lab.tracking.read`).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from cppo_lab.answers import ANSWERS, outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES, Outcomes
from cppo_lab.answers.texts import Sample, Texts, texts_name
from cppo_lab.answers.tokens import RecordedTokens, tokens_name
from cppo_lab.errors import UserError, say
from cppo_lab.files import names_below, open_below

if TYPE_CHECKING:
    from cppo_lab.spec import AnswersSpec

_STEP_FILE = re.compile(r"(texts|tokens)-(\d{6,15})\.(?:jsonl\.gz|npz)")
_TOKEN_SHARE = 0.6  # of a step's size limit: a response of 16,384 tokens fits at the paper's scale

Contents = TypeVar("Contents", Texts, RecordedTokens)


class AnswerFiles(Protocol):
    """The answer files of a run. Both methods raise UserError for what cannot be read."""

    def names(self) -> list[str]:
        """The names of the files in the folder ANSWERS; empty if there is none."""
        ...

    def content(self, name: str, largest: int) -> bytes | None:
        """The content of the file `name`, cut to `largest` + 1 bytes; None if there is no such file."""
        ...

    def what(self, name: str) -> str:
        """The file's name in messages."""
        ...


@dataclass(frozen=True)
class FolderFiles:
    """The files in a run's folder."""

    folder: Path

    def names(self) -> list[str]:
        return names_below(self.folder, ANSWERS)

    def content(self, name: str, largest: int) -> bytes | None:
        file = open_below(self.folder, *name.split("/"))
        if file is None:
            return None
        with file:
            return file.read(largest + 1)

    def what(self, name: str) -> str:
        return str(self.folder / name)


def read_outcomes(files: AnswerFiles) -> Outcomes | None:
    """The outcomes of a run; None if it has none (runs of earlier versions). Raises UserError for a broken file."""
    data = files.content(OUTCOMES, outcomes.LARGEST)
    return None if data is None else outcomes.read(data, files.what(OUTCOMES))


def steps_with(files: AnswerFiles, kind: str) -> list[int]:
    """The steps that have a file of this kind (`texts` or `tokens`), increasing."""
    matches = (_STEP_FILE.fullmatch(name) for name in files.names())
    return sorted({int(match[2]) for match in matches if match and match[1] == kind})


def read_texts(files: AnswerFiles, step: int) -> Texts | None:
    """The samples of a step; None if there is no such file. Raises UserError for a broken file."""
    return _read(files, texts_name(step), step, texts.LARGEST, texts.read)


def read_tokens(files: AnswerFiles, step: int) -> RecordedTokens | None:
    """The tokens of a step; None if there is no such file. Raises UserError for a broken file."""
    return _read(files, tokens_name(step), step, tokens.LARGEST, tokens.read)


def _read(
    files: AnswerFiles, name: str, step: int, largest: int, read: Callable[[bytes, str], Contents]
) -> Contents | None:
    """Raises UserError also for a file of another step than its name says."""
    data, what = files.content(name, largest), files.what(name)
    if data is None:
        return None
    contents = read(data, what)
    if contents.step != step:
        raise UserError(f"{what} is of step {contents.step}, not {step}: delete that file")
    return contents


@dataclass(frozen=True)
class StepAnswers:
    """The answers of a validated step: its outcomes (one validation), samples, and tokens of training responses."""

    outcomes: Outcomes
    samples: Sequence[Sample] = ()
    tokens: RecordedTokens | None = None


class Recording:
    """Writes the answer files of a run to `folder` with `save(name, content)`. `validations` is the number it will
    have.

    `save` returns False if the content is not on disk yet.

    Without `settings`, or if they keep nothing, it does nothing.

    Each step gets an equal part of the run's size limit, so that no run takes more than `settings.megabytes`.
    """

    def __init__(
        self,
        settings: "AnswersSpec | None",
        folder: Path,
        validations: int,
        save: Callable[[str, bytes], bool | None],
    ) -> None:
        self.folder, self._save = folder, save
        self.keeps = settings is not None and settings.keep
        self._room = int(settings.megabytes * 2**20 / max(validations, 1)) if settings else 0
        self._outcomes: Outcomes | None = None

    def begin(self, step: int | None) -> None:
        """Resume from the checkpoint of `step`; None: from the beginning. Records of later steps are dropped."""
        if not self.keeps:
            return
        last = -1 if step is None else step
        names = names_below(self.folder, ANSWERS)
        for name in names:
            match = _STEP_FILE.fullmatch(name)
            if match and int(match[2]) > last:
                (self.folder / ANSWERS / name).unlink(missing_ok=True)
        self._outcomes = None
        if step is None and Path(OUTCOMES).name in names:
            (self.folder / OUTCOMES).unlink(missing_ok=True)
        elif step is not None:
            try:  # those written by an earlier attempt
                earlier = read_outcomes(FolderFiles(self.folder))
                self._outcomes = earlier and earlier.until(step)
            except UserError as error:
                say(f"outcomes of earlier validations are lost: {error}")

    def add(self, answers: StepAnswers | None) -> bool:
        """Record the answers of a validated step, if there are any.

        Returns whether all of it is on disk. The step's checkpoint is written only after that; otherwise a run that
        resumes from the checkpoint would lack these answers.
        """
        if not self.keeps or answers is None:
            return True
        new, past = answers.outcomes, self._outcomes
        step = int(new.steps[-1])
        if past is None or past.key != new.key:
            past = new.until(-1)
        self._outcomes = past.append(step, new.right[-1], new.cut_off[-1], new.length[-1])
        saved = [self._save(OUTCOMES, outcomes.write(self._outcomes))]
        room = self._room
        if answers.tokens is not None:
            packed = tokens.write_within(answers.tokens, int(room * _TOKEN_SHARE))
            if packed is not None:
                saved.append(self._save(tokens_name(step), packed))
                room -= len(packed)
        if answers.samples:
            contents = Texts(step, texts.in_order_of_draws(answers.samples))
            saved.append(self._save(texts_name(step), texts.write_within(contents, room)))
        return False not in saved
