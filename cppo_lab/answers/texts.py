"""Prompts and responses of a validated step: a gzip file of JSON lines, the first of which describes the file."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from cppo_lab.answers import ANSWERS
from cppo_lab.errors import UserError, first_fault

FORMAT = 1
LARGEST = 64 * 2**20  # bytes of a file
LARGEST_UNPACKED = 512 * 2**20
LONGEST = 2**20  # characters of a prompt or response; the middle of a longer text is left out
REMEDY = "delete that file"
VALIDATION: Final = "validation"
TRAINING: Final = "training"


def as_text(value: str | bytes) -> str:
    """Valid Unicode text: invalid UTF-8 bytes and lone surrogates become U+FFFD.

    The middle of a text longer than LONGEST characters is replaced by a note.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not value.isascii():
        value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if len(value) <= LONGEST:
        return value
    half = LONGEST // 2
    return f"{value[:half]}\n[{len(value) - 2 * half} characters are left out here]\n{value[-half:]}"


Text = Annotated[str, BeforeValidator(lambda value: as_text(value) if isinstance(value, str) else value)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One response of the policy.

    kind: whether it was sampled for validation or training, at training step `step`.
    benchmark, problem: as in `Outcomes`; for training, the data set's name (or empty) and any id of the problem.
    draw: its number among the responses to the same prompt, from 0.
    prompt, response, truth: texts; `truth` is the true answer. Invalid Unicode is replaced (`as_text`).
    answer: the answer that the grader extracted; None if there was none.
    right: the grade.
    length: tokens of the response. cut_off: whether it hit the length limit; stop: the sampler's stop reason, such as
    `end` or `length`. group, reward, advantage: for training responses only: the number of the prompt in the batch, and
    the response's reward and advantage.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    kind: Literal["validation", "training"]
    step: Count
    benchmark: Text
    problem: Text
    draw: Count
    prompt: Text
    response: Text
    truth: Text | None
    answer: Text | None
    right: Flag
    length: Count
    cut_off: Flag
    stop: Text
    group: Annotated[int, Field(strict=True)] | None = None
    reward: Number | None = None
    advantage: Number | None = None


@dataclass(frozen=True)
class Texts:
    """The recorded samples of a validated step, and the number of chosen ones that did not fit into the file."""

    step: int
    samples: tuple[Sample, ...]
    left_out: int = 0


def texts_name(step: int) -> str:
    """The name of a step's file, relative to the run's folder."""
    return f"{ANSWERS}/texts-{step:06d}.jsonl.gz"


def write(texts: Texts) -> bytes:
    """The file's bytes."""
    about = {"format": FORMAT, "step": texts.step, "left_out": texts.left_out}
    lines = [about, *(vars(sample) for sample in texts.samples)]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    return gzip.compress(content.encode(), mtime=0)


def write_within(texts: Texts, most: int) -> bytes:
    """The bytes of the file with as many of the first samples as fit into `most` bytes; the rest is left out."""
    samples, left_out = texts.samples, texts.left_out
    while len(data := write(Texts(texts.step, samples, left_out))) > most and samples:
        fit = min(len(samples) - 1, int(len(samples) * most / len(data)))
        left_out += len(samples) - fit
        samples = samples[:fit]
    return data


def read(data: bytes, what: str) -> Texts:
    """The samples in a file's bytes; `what` names the file in messages. Everything in it is validated.

    Raises UserError if it is too large, broken, or not such a file.
    """
    try:
        if len(data) > LARGEST:
            raise ValueError(f"it has {len(data)} bytes, more than the {LARGEST} allowed")
        packed = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        content = packed.decompress(data, LARGEST_UNPACKED)
        if not packed.eof or packed.unused_data:
            raise ValueError("it is truncated, or larger than allowed")
        first, *lines = content.decode().removesuffix("\n").split("\n")
        about, samples = _parsed(_ABOUT, first), tuple(_parsed(_SAMPLE, line) for line in lines)
        if any(sample.step != about.step for sample in samples):
            raise ValueError("a sample is of another step than its file")
        return Texts(about.step, samples, about.left_out)
    except (ValueError, EOFError, RecursionError, OSError, zlib.error) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise UserError(f"{what} has no texts of a run ({reason}): {REMEDY}") from None


class _About(BaseModel):
    format: Literal[1]
    step: Count
    left_out: Count


_ABOUT, _SAMPLE = TypeAdapter(_About), TypeAdapter(Sample)
T = TypeVar("T")


def _parsed(kind: TypeAdapter[T], line: str) -> T:
    """A line of the file. Raises ValueError if it is invalid."""
    try:
        return kind.validate_python(json.loads(line))
    except ValidationError as error:
        raise ValueError(f"a line {first_fault(error.errors())}") from None


def in_order_of_draws(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """The order in which a bounded file takes them: each problem's first answer, the training groups, then the rest."""
    return tuple(
        sorted(
            samples,
            key=lambda sample: 1 if sample.kind == TRAINING else sample.draw + (sample.draw > 0),
        )
    )
