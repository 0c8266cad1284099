"""Where the rows of each split come from, and what a row says.

The rows are the hub's, those of a file or folder of the user's, or those shipped here. A row of any accepted file is
checked and becomes a `Problem`, with its prompt.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from reprlib import repr as _shown
from typing import Any, NamedTuple

from cppo_lab.errors import UserError

BENCHMARKS = ("aime24", "aime25", "aime26")
SPLITS = ("train", *BENCHMARKS)
SHIPPED = Path(__file__).parent / "rows"
SUFFIXES = (".jsonl", ".parquet")
# File names, without suffix, that a folder may hold for a split.
STEMS = {
    "train": ("train", "dapo-math-17k", "dapo_math_sample"),
    "aime24": ("aime24", "aime-2024", "aime_2024"),
    "aime25": ("aime25", "aime-2025", "aime_2025"),
    "aime26": ("aime26", "aime-2026", "aime_2026"),
}


class HubFile(NamedTuple):
    """One file of a data set on huggingface.co, pinned."""

    repository: str
    revision: str
    file: str
    sha256: str


# Not fetched when this was written (no network): revisions and checksums agree between several public projects
# that pin the same files. A mistake cannot do harm: a file that differs is refused.
HUB = {
    "train": HubFile(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        "data/dapo-math-17k.parquet",
        "534375d6bb8630d22ab46a56e11f2ffec1d288d8f7d04099bc82d68948705941",
    ),
    "aime24": HubFile(
        "BytedTsinghua-SIA/AIME-2024",
        "aa49075e24ad594b79fdf0bdcefa735c2181be67",
        "data/aime-2024.parquet",
        "12154e38a716d12db5731f9a022ae69a610c4f7d0e0dcc04e902887a686877e7",
    ),
    "aime25": HubFile(
        "MathArena/aime_2025",
        "c94da77eb22bbd6439e62a323bec18493a421302",
        "data/train-00000-of-00001.parquet",
        "9f9066ff48ad2e31f9bf1b1ac6d5e80693195f987985f2859f89dd25ffa51c2d",
    ),
    "aime26": HubFile(
        "MathArena/aime_2026",
        "d2de22f3c656b4f56cf8981212186377d1e23bc3",
        "data/train-00000-of-00001.parquet",
        "d91db799651b4cc1f0734f52792a695c9cc60dac342524b3d8e5b2ff31c3e957",
    ),
}


class Source(NamedTuple):
    """A file to read a split from, and what the manifest says of it."""

    path: Path
    origin: str
    sha256: str


def sources_of(source: str, say: Callable[[str], None]) -> dict[str, Source]:
    """The file of every split.

    Args:
        source: `sample` (the rows shipped here), `hub`, or a path: a file is the training set, a folder may hold
            a file per split (see `STEMS`). Benchmarks that a path does not bring are the shipped ones.
        say: takes a line of progress.

    Raises:
        UserError: the path does not exist or is ambiguous, or the hub does not answer.
    """
    shipped = {split: local(path, "shipped") for split, path in _folder_files(SHIPPED).items()}
    if source == "sample":
        return shipped
    if source == "hub":
        return {split: _fetched(HUB[split], say) for split in SPLITS}
    path = Path(source)
    if path.is_file():
        return shipped | {"train": local(path, "local")}
    if not path.is_dir():
        raise UserError(f"--from {source}: no such file or folder; valid: hub, sample, or an existing path")
    in_folder = {split: local(file, "local") for split, file in _folder_files(path).items()}
    if "train" not in in_folder:
        names = ", ".join(f"{stem}{suffix}" for stem in STEMS["train"] for suffix in SUFFIXES)
        raise UserError(f"--from {source}: the folder holds no training set; name it one of {names}")
    return shipped | in_folder


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local(path: Path, kind: str) -> Source:
    """A file of this machine. `kind`: where it comes from."""
    return Source(path, f"{kind}:{path.name}", sha256_of(path))


def _folder_files(folder: Path) -> dict[str, Path]:
    """Split -> its file in the folder, without the splits that have no file."""
    file_of = {}
    for split, stems in STEMS.items():
        files = [
            path for stem in stems for suffix in SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()
        ]
        if len(files) > 1:
            names = ", ".join(path.name for path in files)
            raise UserError(f"{folder} holds several files for {split} ({names}): leave one")
        if files:
            file_of[split] = files[0]
    return file_of


def _fetched(wanted: HubFile, say: Callable[[str], None]) -> Source:
    """Fetch a file of the hub into the hub's cache, or take it from there."""
    from huggingface_hub import hf_hub_download

    say(f"hub: {wanted.repository}, {wanted.file} at {wanted.revision[:8]}")
    try:
        path = Path(
            hf_hub_download(wanted.repository, wanted.file, repo_type="dataset", revision=wanted.revision)
        )
    except OSError as error:  # all of its errors: no network, offline mode, no such revision, a full disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"the hub does not give {wanted.repository}/{wanted.file} ({reason[:160]}): check the network, "
            "HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN, or fetch the file elsewhere and pass --from PATH"
        ) from error
    digest = sha256_of(path)
    if digest != wanted.sha256:
        raise UserError(
            f"{path} has sha256 {digest}, not {wanted.sha256} of {wanted.repository} at {wanted.revision[:8]}: "
            "delete it and fetch again; if the data set was changed on purpose, pass the file with --from PATH"
        )
    return Source(path, f"hub:{wanted.repository}@{wanted.revision}/{wanted.file}", digest)


# One problem: the prompt it is given in, and its common form.

# Taken letter by letter from the rows of BytedTsinghua-SIA/DAPO-Math-17k; a test compares it with such rows.
# PAPER: the validation prompt is not given. DAPO's AIME-2024 file wraps its problems in this text, so
# all three benchmarks get it: a policy is validated on the form that it is trained on.
BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


def wrap(problem: str) -> str:
    """The user message that asks for the solution of `problem`."""
    return f"{BEFORE}{problem}{AFTER}"


def is_wrapped(prompt: str) -> bool:
    """Whether a user message has the form that `wrap` gives, around a problem that is not empty."""
    return prompt.startswith(BEFORE) and prompt.endswith(AFTER) and len(prompt) > len(BEFORE) + len(AFTER)


# Longer than anything published by far (DAPO's longest prompt has some thousand characters, its answers are
# integers): anything longer is a broken row, and would exceed the prompt length of every run anyway.
MAX_PROMPT = 100_000
MAX_ANSWER = 1_000
TRAINING_SOURCE = "math_dapo"  # verl's name of DAPO-Math-17k
ROLES = ("system", "user", "assistant")


class Problem(NamedTuple):
    """The messages of a prompt as pairs of role and text, the last the user's, and the answer that is right."""

    data_source: str
    messages: tuple[tuple[str, str], ...]
    answer: str
    id: str


def problem_of(row: Mapping[str, Any], where: str, benchmark: str | None, position: int) -> Problem:
    """Read a row in verl's layout (`prompt`, `reward_model`) or a plain row (`problem` or `messages`, `answer`).

    Args:
        row: the row as read; keys that are not needed are left alone.
        where: file and line, for messages.
        benchmark: name of the validation set that the row belongs to, or None for a row to train on.
        position: 0-based place in the file; names a row that has no id.

    Raises:
        UserError: a key is missing or its value cannot be used.
    """
    row = {key: row[key] for key in row if row[key] is not None}  # in parquet, keys of other rows are null
    if "prompt" in row:
        messages = _messages(row, "prompt", where)
        model = _present(row, "reward_model", where)
        if not isinstance(model, Mapping):
            raise UserError(
                f"{where}: `reward_model` is {_shown(model)}: give an object such as {{'ground_truth': '34'}}"
            )
        answer = _answer(model, "ground_truth", where)
        identifier = (
            (row.get("extra_info") or {}).get("index") if isinstance(row.get("extra_info"), Mapping) else None
        )
        if benchmark in BENCHMARKS and not is_wrapped(messages[-1][1]):
            raise UserError(
                f"{where}: `prompt` of a {benchmark} row is {_shown(messages[-1][1])}, not a problem in DAPO's "
                "template: give the bare problem in a key `problem` with its `answer`, and it is wrapped"
            )
    elif "problem" in row or "messages" in row:
        messages = (
            _messages(row, "messages", where)
            if "messages" in row
            else (("user", wrap(_text(row, "problem", where, MAX_PROMPT))),)
        )
        answer = _answer(row, "answer", where)
        identifier = row.get("id")
    else:
        raise UserError(
            f"{where}: neither `prompt` nor `problem` is among the keys with a value, {sorted(map(str, row))}: "
            "each row needs `problem` or `messages`, and `answer`, or verl's `prompt` and `reward_model.ground_truth`"
        )
    name = benchmark or TRAINING_SOURCE
    if benchmark in BENCHMARKS:
        if not (answer.isascii() and answer.isdigit() and int(answer) <= 999):
            raise UserError(
                f"{where}: the answer is {_shown(answer)}: AIME answers are whole numbers from 0 to 999"
            )
        answer = str(int(answer))  # without leading zeros
    elif not benchmark and row.get("data_source") is not None:
        name = _text(row, "data_source", where, MAX_ANSWER)
    if identifier is None or isinstance(identifier, bool) or not isinstance(identifier, int | str):
        identifier = f"{name}-{position}"
    return Problem(name, messages, answer, _storable(str(identifier), "id", where, MAX_PROMPT))


def _present(row: Mapping[str, Any], key: str, where: str) -> Any:
    if row.get(key) is None:
        raise UserError(
            f"{where}: `{key}` is missing: its keys with a value are {sorted(map(str, row))}; add it or drop the row"
        )
    return row[key]


def _text(row: Mapping[str, Any], key: str, where: str, longest: int) -> str:
    value = _present(row, key, where)
    if not isinstance(value, str) or _is_blank(value):
        raise UserError(f"{where}: `{key}` is {_shown(value)}: give a text that is not empty")
    return _storable(value, key, where, longest)


def _is_blank(text: str) -> bool:
    """Whether a text shows nothing: blanks and characters without width."""
    return not "".join(filter(str.isprintable, text)).strip()


def _storable(value: str, key: str, where: str, longest: int) -> str:
    if len(value) > longest:
        raise UserError(
            f"{where}: `{key}` has {len(value)} characters, starting {_shown(value[:40])}: at most {longest} are "
            "taken; fix or drop the row"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: `{key}` holds half a surrogate pair at character {error.start}: write the text as UTF-8"
        ) from None
    return value


def _messages(row: Mapping[str, Any], key: str, where: str) -> tuple[tuple[str, str], ...]:
    """The roles and texts of a prompt's messages."""
    messages = row[key] if isinstance(row[key], list) else []
    roles = [str(message.get("role")) if isinstance(message, Mapping) else "" for message in messages]
    if not {*roles} <= {*ROLES} or roles[-1:] != ["user"]:
        raise UserError(
            f"{where}: `{key}` is {_shown(row[key])}: give a list of messages {{'role': 'user', 'content': ...}} "
            f"(roles: {', '.join(ROLES)}), of which the last is the user's, as DAPO-Math-17k has it"
        )
    texts = [_text(message, "content", f"{where}: `{key}`", MAX_PROMPT) for message in messages]
    return tuple(zip(roles, texts, strict=True))


def _answer(row: Mapping[str, Any], key: str, where: str) -> str:
    """An answer as text. Whole numbers are accepted, floats are not: they may not be the number that was meant."""
    value = _present(row, key, where)
    if isinstance(value, float):
        kind = "a binary fraction" if math.isfinite(value) else "not a number"
        raise UserError(
            f"{where}: `{key}` is {value!r}, {kind}: write the answer as text or as a whole number"
        )
    if isinstance(value, bool) or not isinstance(value, int | str) or _is_blank(str(value)):
        raise UserError(f"{where}: `{key}` is {_shown(value)}: give the answer as text or as a whole number")
    return _storable(str(value).strip(), key, where, MAX_ANSWER)
