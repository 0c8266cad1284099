"""Reading a run's answers, wherever its files are: in its folder, or in a tracking store (`cppo_lab.tracking.read`)."""

import re
from pathlib import Path
from typing import Protocol

from cppo_lab.answers import ANSWERS, outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES, Outcomes
from cppo_lab.answers.texts import Texts, texts_name
from cppo_lab.answers.tokens import RecordedTokens, tokens_name
from cppo_lab.files import names_below, open_below

STEP_FILE = re.compile(r"(texts|tokens)-(\d{6,15})\.(?:jsonl\.gz|npz)")


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


class FolderFiles:
    """The files in a run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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
    matches = (STEP_FILE.fullmatch(name) for name in files.names())
    return sorted({int(match[2]) for match in matches if match and match[1] == kind})


def read_texts(files: AnswerFiles, step: int) -> Texts | None:
    """The samples of a step; None if there is no such file. Raises UserError for a broken file."""
    name = texts_name(step)
    data = files.content(name, texts.LARGEST)
    return None if data is None else texts.read(data, files.what(name))


def read_tokens(files: AnswerFiles, step: int) -> RecordedTokens | None:
    """The tokens of a step; None if there is no such file. Raises UserError for a broken file."""
    name = tokens_name(step)
    data = files.content(name, tokens.LARGEST)
    return None if data is None else tokens.read(data, files.what(name))
