"""Where rows come from: rows that cannot be used, folders, the hub."""

import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cppo_lab.data import prepare as read
from cppo_lab.data import sources
from cppo_lab.data.prepare import prepare
from cppo_lab.sweep.compose import compose
from tests.conftest import Command, user_error
from tests.data.made_files import AFTER, BEFORE, dapo_row, read_parquet, shipped, write_jsonl, write_parquet


def changed(**fields: Any) -> bytes:
    return json.dumps({**dapo_row("p", "1"), **fields}).encode()


# Beside those of tests/hostile/folders.py.
HOSTILE = [
    (b"7", "is int, not an object"),
    (b'{"problem": "p", "answer": -Infinity}', "the value -Infinity is not a JSON number"),
    (b'{"problem": "' + b"x" * 10_000_000 + b'"}', "is longer than 1048576 bytes"),
    (b'{"problem": "p"}', "`answer` is missing"),
    (b'{"problem": "p", "answer": ["1"]}', "`answer` is ['1']"),
    (b'{"problem": "p", "answer": "  "}', "`answer` is '  '"),
    (b'{"problem": "p", "answer": "\\u200b"}', "`answer` is '\\u200b'"),
    (b'{"problem": "\\ufeff \\u2060", "answer": "1"}', "`problem` is '\\ufeff"),
    (b'{"problem": "p", "answer": "' + b"1" * 1_001 + b'"}', "`answer` has 1001 characters"),
    (b'{"problem": 5, "answer": "1"}', "`problem` is 5"),
    (b'{"problem": " ", "answer": "1"}', "`problem` is ' '"),
    (b'{"problem": "' + b"x" * 100_001 + b'", "answer": "1"}', "has 100001 characters"),
    (changed(prompt=[]), "`prompt` is []"),
    (changed(prompt=[{"role": "tool", "content": "a"}] * 2), "list of messages"),
    (
        changed(prompt=[{"role": "system", "content": "a"}]),
        "which the last is the user's",
    ),
    (changed(prompt=[{"role": "user"}]), "`prompt`: `content` is missing"),
    (changed(reward_model=None), "`reward_model` is missing"),
    (changed(reward_model="1"), "`reward_model` is '1'"),
    (changed(reward_model={"style": "rule"}), "`ground_truth` is missing"),
    (
        b'{"problem": "p", "answer": "1", "id": "\\ud800"}',
        "`id` holds half a surrogate pair",
    ),
    (b'{"problem": "p", "answer": 1e400}', "`answer` is inf, not a number"),
    (changed(data_source=3), "`data_source` is 3"),
]


@pytest.mark.parametrize("line, message", HOSTILE, ids=[said for _, said in HOSTILE])
def test_a_row_that_cannot_be_used_is_one_error_that_says_where(
    tmp_path: Path, line: bytes, message: str
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(changed() + b"\n\n" + line + b"\n" + changed() + b"\n")
    with user_error(rf"^{path}, line 3\b.*{re.escape(message)}") as error:
        prepare(str(path), tmp_path / "data")
    assert len(str(error.value)) < 700
    assert not (tmp_path / "data").exists()


def test_a_line_of_gigabytes_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room on disk

    def refuse(error: Exception) -> None:
        raise error

    with user_error("line 1 is longer than"):
        next(read.rows_of(path, refuse))


TRAIN = {"train.jsonl": [dapo_row("p", "1")]}
twice = io.BytesIO()
pyarrow.parquet.write_table(
    pyarrow.Table.from_arrays([["p"], ["q"], ["1"]], names=["problem", "problem", "answer"]), twice
)
TWO_ANSWERS = [*shipped("aime25"), {**shipped("aime25")[3], "answer": "1"}]
# Files of a folder, what is prepared from it (the folder itself if empty), and what is said.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    *(
        ({"train.parquet": rows}, "train.parquet", message)
        for rows, message in (
            ([{"problem": "p", "answer": float("nan")}], "row 1: `answer` is nan, not a number"),
            ([{"problem": "p", "answer": 70.0}], "row 1: `answer` is 70.0, a binary fraction"),
            (
                [{"problem": "p", "answer": "1"}, {"problem": None, "answer": "1"}],
                "row 2: neither `prompt` nor `problem` is among the keys with a value, ['answer']",
            ),
            (
                [{"problem": "p", "answer": "1", "id": pyarrow.scalar(2**60, pyarrow.timestamp("us"))}],
                "after row 0 (date value out of range)",
            ),
            ([{"question": "p"}], "has the columns ['question']"),
            ([], "has the columns []"),
            ([{"problem": b"\xff\xfe", "answer": "1"}], "row 1: `problem` is b'\\xff\\xfe'"),
            (twice.getvalue(), "column 'problem' appears twice: remove one"),
            (b"PAR1" + b"\0" * 100 + b"PAR1", "cannot be read as parquet after row 0"),
        )
    ),
    *(
        (TRAIN | {"aime26.jsonl": [{"problem": "p", "answer": answer}]}, "", "AIME answers are whole numbers")
        for answer in ("-1", "1.0")
    ),
    *(
        (
            TRAIN | {"aime24.jsonl": [dapo_row("p", "1") | {"prompt": [{"role": "user", "content": text}]}]},
            "",
            f"line 1: `prompt` of a aime24 row is {text[:9]!r}"[:-1],
        )
        for text in ("Find x.", f"{BEFORE}x", f"x{AFTER}", BEFORE + AFTER)
    ),
    (
        *(TRAIN | {"aime25.jsonl": TWO_ANSWERS}, ""),
        "aime25.jsonl, line 31: a prompt of aime25 has the answers '117' and '1'",
    ),
    (
        {"train.jsonl": [dapo_row("p", "1"), dapo_row("p", "2")]},
        "",
        "holds no row to train on (2 rows read, answers that contradict each other: ['1', '2'])",
    ),
]


@pytest.mark.parametrize("files, source, message", REFUSED)
def test_what_cannot_be_prepared(tmp_path: Path, files: dict[str, Any], source: str, message: str) -> None:
    for name, content in files.items():
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        else:
            (write_jsonl if name.endswith(".jsonl") else write_parquet)(tmp_path / name, content)
    with user_error(re.escape(message)):
        prepare(str(tmp_path / source), tmp_path / "data")


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A hub that hands out files in the layouts of the four data sets; called, these are the pinned ones."""
    folder = tmp_path / "hub"
    folder.mkdir()
    arena = [
        {"problem_idx": place + 1, "problem": row["problem"], "answer": int(row["answer"])}
        for place, row in enumerate(shipped("aime25"))
    ]
    rows = {
        "train": [dapo_row(f"problem {place}", str(place), f"uuid-{place}") for place in range(5)] * 100,
        "aime24": [
            dapo_row(row["problem"], row["answer"], f"{place}") for place, row in enumerate(shipped("aime24"))
        ]
        * 32,
        "aime25": arena,
        "aime26": arena,
    }
    files = {split: write_parquet(folder / f"{split}.parquet", content) for split, content in rows.items()}
    asked = {(pin.repository, pin.revision, pin.file): files[split] for split, pin in sources.HUB.items()}

    def download(repository: str, file: str, *, repo_type: str, revision: str) -> str:
        assert repo_type == "dataset"
        return str(asked[repository, revision, file])

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)

    def pin() -> None:
        for split, path in files.items():
            pinned = sources.HUB[split]._replace(sha256=sources.sha256_of(path))
            monkeypatch.setitem(sources.HUB, split, pinned)

    return pin


def test_the_layouts_of_the_hub(fake_hub: Callable[[], None], tmp_path: Path) -> None:
    fake_hub()
    said: list[str] = []
    records = prepare("hub", tmp_path / "data", said.append)
    assert {name: (record.rows_read, record.rows) for name, record in records.items()} == {
        "train.parquet": (500, 5),
        "aime24.parquet": (960, 30),
        "aime25.parquet": (30, 30),
        "aime26.parquet": (30, 30),
    }
    assert records["train.parquet"].origin.startswith("hub:BytedTsinghua-SIA/DAPO-Math-17k@65877096c24f")
    assert len(said) == 4
    prepare("sample", tmp_path / "sample")
    for name in ("aime24.parquet", "aime25.parquet"):
        from_hub, ours = (
            [
                (row["data_source"], row["prompt"], row["reward_model"])
                for row in read_parquet(tmp_path / folder / name)
            ]
            for folder in ("data", "sample")
        )
        assert from_hub == ours
    [first, *_] = read_parquet(tmp_path / "data" / "aime25.parquet")
    assert first["extra_info"] == {"index": 0, "split": "aime25", "id": "aime25-0"}


def test_a_file_of_the_hub_that_is_not_the_pinned_one_is_refused(
    fake_hub: Callable[[], None], tmp_path: Path
) -> None:
    with user_error(r"has sha256 [0-9a-f]{64}, not 534375d6"):
        prepare("hub", tmp_path / "data")


@pytest.mark.parametrize(
    "error", [ConnectionError("offline mode"), FileNotFoundError("no network"), OSError()]
)
def test_a_hub_out_of_reach_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with user_error(r"BytedTsinghua-SIA/DAPO-Math-17k.*HF_HUB_OFFLINE.*--from PATH"):
        prepare("hub", tmp_path / "data")


def test_the_commands(workspace: Path, cppo: Command) -> None:
    shown = "train.parquet        8 rows (8 read) from shipped:dapo_math_sample.jsonl"
    assert shown in cppo("data prepare").out
    assert "aime26.parquet      30 rows (30 read)" in cppo("data check data").out
    assert "data: unchanged" in cppo("data prepare").err
    (workspace / "data" / "aime24.parquet").write_bytes(b"x")
    assert "aime24.parquet is changed (sha256 " in cppo("data check data", code=2).err
    rows = [dapo_row("p", "1"), dapo_row("q", "1"), dapo_row("q", "2")] * 2
    write_jsonl(workspace / "train.jsonl", rows)
    out = cppo("data prepare --from train.jsonl --out other").out
    assert (
        "     1 row (6 read, 1 repeats dropped, 4 rows of 1 prompt with several answers dropped) from" in out
    )


@pytest.mark.parametrize("name", ["data", "my data", "it's", "s3:", "a\udcff", "a=b,c"])
def test_the_words_to_train_on_it_are_read_as_printed(name: str, workspace: Path, cppo: Command) -> None:
    """Whatever the folder is called, which pyarrow could take for an address."""
    file = write_jsonl(workspace / "mine.jsonl", [dapo_row("p", "1")])
    out = str(workspace / name)
    said = cppo(f"data prepare --from {file} --validation held={file}", "--out", out).out
    if name.isascii():  # else it is printed in escapes
        words = shlex.split(said.partition("to train on it: ")[2])
        composed = compose(["model=qwen3_1_7b_base", "rule=cppo", "seed=0", *words])
        assert composed.run.data.files is not None and set(composed.run.data.files) == {"train", "held"}
    cppo("data check", out)
