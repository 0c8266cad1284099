"""Prepared data: layout, duplicates, the same bytes every time, whole or not at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.data.prepare import FileRecord, check_folder, prepare, summary
from tests.conftest import user_error
from tests.data.made_files import (
    AFTER,
    BEFORE,
    dapo_row,
    read_parquet,
    shipped,
    write_jsonl,
    write_parquet,
)

FILES = ["aime24.parquet", "aime25.parquet", "aime26.parquet", "manifest.json", "train.parquet"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder into which the tests prepare data; it is not there yet."""
    return tmp_path / "data"


@pytest.fixture
def prepared(out: Path) -> Path:
    """`out` with the shipped rows."""
    prepare("sample", out)
    return out


def trained_on(out: Path, source: Path, **options: Any) -> tuple[FileRecord, list[dict[str, Any]]]:
    """What the manifest says of the training set that is prepared from a file, and its rows."""
    record = prepare(str(source), out, **options)["train.parquet"]
    return record, read_parquet(out / "train.parquet")


def test_the_shipped_rows_in_verls_layout(out: Path) -> None:
    records = prepare("sample", out)
    assert sorted(contents(out)) == FILES
    assert {name: record.rows for name, record in records.items()} == {
        "train.parquet": 8,
        **dict.fromkeys(FILES[:3], 30),
    }
    published = [
        (
            "math_dapo",
            row["prompt"][0]["content"],
            row["reward_model"]["ground_truth"],
            row["extra_info"]["index"],
        )
        for row in shipped("dapo_math_sample")
    ]
    assert all(text.startswith(BEFORE) and text.endswith(AFTER) for _, text, *_ in published)
    sets = {"train": published}
    for name in ("aime24", "aime25", "aime26"):
        rows = shipped(name)
        sets[name] = [(name, BEFORE + row["problem"] + AFTER, row["answer"], row["id"]) for row in rows]
    for split, rows in sets.items():
        assert read_parquet(out / f"{split}.parquet") == [
            {
                "data_source": source,
                "prompt": [{"role": "user", "content": text}],
                "ability": "MATH",
                "reward_model": {"style": "rule", "ground_truth": truth},
                "extra_info": {"index": index, "split": split, "id": name},
            }
            for index, (source, text, truth, name) in enumerate(rows)
        ]


def test_each_prompt_stays_once_in_the_order_of_first_rows(tmp_path: Path, out: Path) -> None:
    """Rows of JSON lines and of parquet give the same content; the manifest holds no path and no date."""
    rows = [dapo_row(f"problem {name}", str(place), name) for place, name in enumerate("cadb")] * 100
    digests = set()
    for write, suffix in ((write_jsonl, "jsonl"), (write_parquet, "parquet")):
        file = write(tmp_path / f"dapo-math-17k.{suffix}", rows)
        record, made = trained_on(out, file)  # replaces the first
        digests.add((record.content_sha256, record.sha256))
        assert (record.rows_read, record.duplicates_dropped, record.rows) == (400, 396, 4)
        kept = [(row["extra_info"]["id"], row["reward_model"]["ground_truth"]) for row in made]
        assert kept == [(name, str(place)) for place, name in enumerate("cadb")]
        text = (out / "manifest.json").read_text()
        assert str(tmp_path) not in text
        assert set(json.loads(text)) == {"format", "tool", "pyarrow", "files", "sha256"}
        check_folder(out)
    assert len(digests) == 1


def test_a_prompt_with_two_answers_is_left_out_of_training_and_listed(tmp_path: Path, out: Path) -> None:
    """Which answers are equal: tests/data/test_answers.py."""
    copies = [("clear", "1", "x"), ("disputed", "0.5", "y"), ("disputed", "4711", "z")] * 3
    copies += [("clear", "01", "w"), ("half", "0.5", "v"), ("half", "\\frac{1}{2}", "u")]
    record, made = trained_on(out, write_jsonl(tmp_path / "train.jsonl", [dapo_row(*row) for row in copies]))
    kept = [(row["extra_info"]["id"], row["reward_model"]["ground_truth"]) for row in made]
    assert kept == [("x", "1"), ("v", "0.5")]
    assert (record.rows_read, record.rows) == (12, 2)
    assert (record.duplicates_dropped, record.conflicting_rows_dropped) == (4, 6)
    assert record.conflicts == [{"id": "y", "answers": ["0.5", "4711"]}]


def test_a_folder_without_benchmarks_gets_the_shipped_ones(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_jsonl(source / "train.jsonl", [dapo_row("p", "1")])
    write_jsonl(source / "aime24.jsonl", list(reversed(shipped("aime24"))))
    assert [record.origin for record in prepare(str(source), out).values()] == [
        *("local:train.jsonl", "local:aime24.jsonl", "shipped:aime25.jsonl", "shipped:aime26.jsonl")
    ]
    assert read_parquet(out / "aime24.parquet")[0]["extra_info"]["id"] == "aime24-29"


def test_preparing_again_changes_nothing(prepared: Path, tmp_path: Path) -> None:
    before, times = contents(prepared), [path.stat().st_mtime_ns for path in sorted(prepared.iterdir())]
    said: list[str] = []
    prepare("sample", prepared, said.append)
    assert contents(prepared) == before
    assert [path.stat().st_mtime_ns for path in sorted(prepared.iterdir())] == times
    assert said == [f"{prepared}: unchanged"]
    prepare("sample", tmp_path / "elsewhere")
    assert contents(tmp_path / "elsewhere") == before


def test_a_failure_leaves_what_was_there(tmp_path: Path, out: Path) -> None:
    broken = write_jsonl(tmp_path / "train.jsonl", [dapo_row("p", "1"), {"problem": "q"}])
    with user_error(r"train.jsonl, line 2: `answer` is missing"):
        prepare(str(broken), out)
    assert not out.exists()
    prepare("sample", out)
    before = contents(out)
    with user_error("line 2"):
        prepare(str(broken), out)
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "train.jsonl"]


def test_data_without_its_manifest_is_not_touched(prepared: Path) -> None:
    """Nor what is none: tests/hostile/folders.py."""
    (prepared / "manifest.json").unlink()
    with user_error(r"in use \(data without manifest.json\)"):
        prepare("sample", prepared)


def test_any_changed_byte_of_the_manifest_is_noticed(prepared: Path) -> None:
    manifest = prepared / "manifest.json"
    whole = manifest.read_bytes()
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        manifest.write_bytes(changed)
        with user_error(r"manifest.json is changed"):
            check_folder(prepared)


def test_changed_missing_and_foreign_files_are_named(prepared: Path) -> None:
    for name, place in (("aime24.parquet", 0), ("train.parquet", -1)):
        data = bytearray((prepared / name).read_bytes())
        data[place] ^= 1
        (prepared / name).write_bytes(data)
    (prepared / "aime25.parquet").unlink()
    (prepared / "notes.txt").write_text("x")
    with user_error("; not part of the prepared data: notes.txt") as error:
        check_folder(prepared)
    for said in (
        "aime24.parquet is changed (sha256 ",
        "train.parquet is changed",
        "aime25.parquet is missing",
    ):
        assert said in str(error.value)


def test_the_folder_can_be_read_by_others(out: Path) -> None:
    mask = os.umask(0o022)
    try:
        prepare("sample", out)
    finally:
        os.umask(mask)
    assert out.stat().st_mode & 0o777 == 0o755


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    """Or data would move from the large disk that a user linked to."""
    (tmp_path / "disk").mkdir()
    for name, target in (("link", "disk"), ("ahead", "disk/new")):
        (tmp_path / name).symlink_to(tmp_path / target)
        for source in ("sample", str(own_rows(tmp_path, b'{"problem": "p", "answer": 1}'))):
            prepare(source, tmp_path / name)
            assert (tmp_path / name).readlink() == tmp_path / target
            assert sorted(contents(tmp_path / target)) == FILES
        shutil.rmtree(tmp_path / target)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with user_error(r"--out .*loop is a circular link: name another folder"):
        prepare("sample", tmp_path / "loop")


def test_keys_that_are_null_are_those_of_other_rows(tmp_path: Path, out: Path) -> None:
    asked = [{"role": "user", "content": "2 + 2?"}]
    rows = [
        {"problem": "p", "messages": None, "prompt": None, "answer": "1"},
        {"problem": None, "messages": asked, "prompt": None, "answer": "4"},
    ]
    _, made = trained_on(out, write_parquet(tmp_path / "mine.parquet", rows))
    assert [row["prompt"][-1]["content"] for row in made] == [f"{BEFORE}p{AFTER}", "2 + 2?"]
    assert {row["data_source"] for row in made} == {"math_dapo"}


def own_rows(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(data)
    return path


def test_a_byte_order_mark_line_ends_of_windows_and_blank_lines_lose_no_row(
    tmp_path: Path, out: Path
) -> None:
    lines = [json.dumps({"problem": f"p{place}", "answer": place}).encode() for place in range(3)]
    windows = b"".join(b"\xef\xbb\xbf" + line + b"\r\n\r\n" for line in lines)  # files put together
    records = [trained_on(out, own_rows(tmp_path, data))[0] for data in (b"\n".join(lines), windows)]
    assert records[0].rows == 3
    assert records[0].content_sha256 == records[1].content_sha256


DAMAGED = (
    b'{"problem": "p", "answer": "1"}\n'
    b'{"problem": "broken", "answer":\n'
    b"\n"
    b'{"problem": "no answer"}\n'
    b'{"messages": [{"role": "user", "content": "q"}], "answer": "2"}\n'
    b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}], "answer": "2"}\n'
    b'{"messages": "q", "answer": "2"}\n' + b" " * (1 << 21) + b"\n"
    b'{"problem": "\xff", "answer": "3"}\n'
)


def test_a_damaged_row_is_named_by_its_line_or_skipped_and_counted(tmp_path: Path, out: Path) -> None:
    file = own_rows(tmp_path, DAMAGED)
    with user_error("line 2 is not a row in JSON"):
        prepare(str(file), out)
    said: list[str] = []
    record, _ = trained_on(out, file, say=said.append, skip=True)
    assert (record.rows, record.rows_skipped) == (2, 6)
    numbers = [int(line.partition(", line ")[2].split()[0].rstrip(":")) for line in said]
    assert numbers == [2, 4, 6, 7, 8]  # the first five
    assert check_folder(out)["train.parquet"].rows_skipped == 6
    assert summary({"train": record}).endswith(
        "2 rows (2 read, 6 damaged ones skipped) from local:mine.jsonl"
    )


@pytest.mark.parametrize("write, suffix", [(write_jsonl, "jsonl"), (write_parquet, "parquet")])
def test_messages_and_validation_sets_of_ones_own(tmp_path: Path, out: Path, write: Any, suffix: str) -> None:
    turns = (("system", "Be brief."), ("user", "2 + 1?"), ("assistant", "3"), ("user", "2 + 2?"))
    asked = [{"role": role, "content": text} for role, text in turns]
    rows = [{"messages": asked, "answer": "4", "data_source": "theirs", "id": True}]
    file = write(tmp_path / f"mine.{suffix}", rows)
    records = prepare(str(file), out, validation={"held": file})
    assert list(records) == ["train.parquet", "held.parquet"]
    for name, source in (
        ("train", "theirs"),
        ("held", "held"),
    ):  # by the latter verl separates validation sets
        (row,) = read_parquet(out / f"{name}.parquet")
        assert (row["prompt"], row["reward_model"]["ground_truth"]) == (asked, "4")
        assert (row["data_source"], row["extra_info"]["id"]) == (source, f"{source}-0")
    prepare("sample", out)  # the folder is prepared data, though that set is not named again
    assert sorted(contents(out)) == FILES
