"""Prepared data: layout, duplicates, the same bytes every time, whole or not at all."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.data.prepare import check_folder, prepare
from cppo_lab.errors import UserError
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


def test_the_shipped_rows_in_verls_layout(tmp_path: Path) -> None:
    records = prepare("sample", tmp_path / "data")
    assert sorted(contents(tmp_path / "data")) == FILES
    assert {name: record.rows for name, record in records.items()} == {
        "train.parquet": 8,
        "aime24.parquet": 30,
        "aime25.parquet": 30,
        "aime26.parquet": 30,
    }
    for row, published in zip(
        read_parquet(tmp_path / "data" / "train.parquet"), shipped("dapo_math_sample"), strict=True
    ):
        assert row["prompt"] == published["prompt"]
        assert row["reward_model"] == {
            "style": "rule",
            "ground_truth": published["reward_model"]["ground_truth"],
        }
        assert row["extra_info"]["id"] == published["extra_info"]["index"]
        assert (row["data_source"], row["ability"]) == ("math_dapo", "MATH")


@pytest.mark.parametrize("name", ["aime24", "aime25", "aime26"])
def test_aime_problems_get_the_prompt_of_the_published_rows(tmp_path: Path, name: str) -> None:
    published = shipped("dapo_math_sample")[0]["prompt"][0]["content"]
    assert published.startswith(BEFORE)
    assert published.endswith(AFTER)
    prepare("sample", tmp_path / "data")
    rows = read_parquet(tmp_path / "data" / f"{name}.parquet")
    for index, (row, problem) in enumerate(zip(rows, shipped(name), strict=True)):
        assert row == {
            "data_source": name,
            "prompt": [{"role": "user", "content": BEFORE + problem["problem"] + AFTER}],
            "ability": "MATH",
            "reward_model": {"style": "rule", "ground_truth": problem["answer"]},
            "extra_info": {"index": index, "split": name, "id": problem["id"]},
        }


def test_each_prompt_stays_once_in_the_order_of_first_rows(tmp_path: Path) -> None:
    """Rows of JSON lines and of parquet give the same content; the manifest holds no path and no date."""
    names = ["c", "a", "d", "b"]
    rows = [dapo_row(f"problem {name}", str(place), name) for place, name in enumerate(names)] * 100
    records = []
    for write, suffix in ((write_jsonl, "jsonl"), (write_parquet, "parquet")):
        file = write(tmp_path / f"dapo-math-17k.{suffix}", rows)
        records.append(prepare(str(file), tmp_path / "data")["train.parquet"])  # replaces what was prepared
        assert (records[-1].rows_read, records[-1].duplicates_dropped, records[-1].rows) == (400, 396, 4)
        made = read_parquet(tmp_path / "data" / "train.parquet")
        assert [row["extra_info"]["id"] for row in made] == names
        assert [row["extra_info"]["index"] for row in made] == [0, 1, 2, 3]
        assert [row["reward_model"]["ground_truth"] for row in made] == ["0", "1", "2", "3"]
        text = (tmp_path / "data" / "manifest.json").read_text()
        assert str(tmp_path) not in text
        assert set(json.loads(text)) == {"format", "tool", "pyarrow", "files", "sha256"}
        check_folder(tmp_path / "data")
    assert (records[0].content_sha256, records[0].sha256) == (records[1].content_sha256, records[1].sha256)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dapo-math-17k.jsonl", "dapo-math-17k.parquet", "data",
    ]  # fmt: skip


def test_a_prompt_with_two_answers_is_left_out_of_training_and_listed(tmp_path: Path) -> None:
    rows = [dapo_row("clear", "1", "x"), dapo_row("disputed", "2", "y"), dapo_row("disputed", "3", "z")] * 3
    rows.append(dapo_row("clear", "01", "w"))  # the same number
    record = prepare(str(write_jsonl(tmp_path / "train.jsonl", rows)), tmp_path / "data")["train.parquet"]
    assert [row["extra_info"]["id"] for row in read_parquet(tmp_path / "data" / "train.parquet")] == ["x"]
    assert (record.rows_read, record.rows) == (10, 1)
    assert (record.duplicates_dropped, record.conflicting_rows_dropped) == (3, 6)
    assert record.conflicts == [{"id": "y", "answers": ["2", "3"]}]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,000", "1000"),
        ("+3", "3"),
        ("$7$", "7"),
        ("0.5", "\\frac{1}{2}"),
        ("50\\%", "50"),
        ("x+1\\,", "x + 1"),
    ],
)
def test_copies_with_equal_answers_are_one_problem(tmp_path: Path, one: str, other: str) -> None:
    rows = [
        dapo_row("p", one, "x"),
        dapo_row("p", other, "y"),
        dapo_row("q", one, "z"),
        dapo_row("q", "4711", "w"),
    ]
    record = prepare(str(write_jsonl(tmp_path / "train.jsonl", rows)), tmp_path / "data")["train.parquet"]
    (row,) = read_parquet(tmp_path / "data" / "train.parquet")
    assert (row["extra_info"]["id"], row["reward_model"]["ground_truth"]) == ("x", one)
    assert (record.duplicates_dropped, record.conflicting_rows_dropped) == (1, 2)
    assert record.conflicts == [{"id": "z", "answers": [one, "4711"]}]


def test_a_folder_without_benchmarks_gets_the_shipped_ones(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_jsonl(source / "train.jsonl", [dapo_row("p", "1")])
    write_jsonl(source / "aime24.jsonl", list(reversed(shipped("aime24"))))
    records = prepare(str(source), tmp_path / "data")
    assert [record.origin for record in records.values()] == [
        "local:train.jsonl",
        "local:aime24.jsonl",
        "shipped:aime25.jsonl",
        "shipped:aime26.jsonl",
    ]
    first = read_parquet(tmp_path / "data" / "aime24.parquet")[0]
    assert first["extra_info"]["id"] == "aime24-29"


def test_preparing_again_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "data"
    prepare("sample", out)
    before, times = contents(out), [path.stat().st_mtime_ns for path in sorted(out.iterdir())]
    said: list[str] = []
    prepare("sample", out, said.append)
    assert contents(out) == before
    assert [path.stat().st_mtime_ns for path in sorted(out.iterdir())] == times
    assert said == [f"{out}: unchanged"]
    prepare("sample", tmp_path / "elsewhere")
    assert contents(tmp_path / "elsewhere") == before


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "data"
    broken = write_jsonl(tmp_path / "train.jsonl", [dapo_row("p", "1"), {"problem": "q"}])
    with pytest.raises(UserError, match=r"train.jsonl, line 2: `answer` is missing"):
        prepare(str(broken), out)
    assert not out.exists()
    prepare("sample", out)
    before = contents(out)
    with pytest.raises(UserError):
        prepare(str(broken), out)
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "train.jsonl"]


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"in use \(thesis.tex\)"):
        prepare("sample", tmp_path)
    out = tmp_path / "data"
    prepare("sample", out)
    (out / "mine.txt").write_text("x")
    with pytest.raises(UserError, match=r"in use \(mine.txt\)"):
        prepare("sample", out)
    (out / "mine.txt").unlink()
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"data without manifest.json"):
        prepare("sample", out)
    with pytest.raises(UserError, match="is a file"):
        prepare("sample", tmp_path / "thesis.tex")


@pytest.mark.parametrize("place", [0, 0.3, 0.6, 0.999])
def test_one_changed_byte_is_named(tmp_path: Path, place: float) -> None:
    out = tmp_path / "data"
    prepare("sample", out)
    for name in ("train.parquet", "aime26.parquet"):
        data = bytearray((out / name).read_bytes())
        data[int(place * len(data))] ^= 1
        (out / name).write_bytes(data)
        with pytest.raises(UserError, match=f"{name} is changed"):
            check_folder(out)


def test_any_changed_byte_of_the_manifest_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "data"
    prepare("sample", out)
    whole = (out / "manifest.json").read_bytes()
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        (out / "manifest.json").write_bytes(changed)
        with pytest.raises(UserError, match=r"manifest.json is changed"):
            check_folder(out)


def test_changed_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    out = tmp_path / "data"
    prepare("sample", out)
    write_parquet(out / "aime24.parquet", read_parquet(out / "aime24.parquet"))
    (out / "aime25.parquet").unlink()
    (out / "notes.txt").write_text("x")
    with pytest.raises(UserError) as error:
        check_folder(out)
    assert "aime24.parquet is changed (sha256 " in str(error.value)
    assert "aime25.parquet is missing" in str(error.value)
    assert "not part of the prepared data: notes.txt" in str(error.value)
    with pytest.raises(UserError, match=r"holds no manifest.json"):
        check_folder(tmp_path)


def test_the_folder_can_be_read_by_others(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        prepare("sample", tmp_path / "data")
    finally:
        os.umask(mask)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o755


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
    with pytest.raises(UserError, match=r"--out .*loop is a circular link: name another folder"):
        prepare("sample", tmp_path / "loop")


def test_a_full_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    prepare("sample", tmp_path / "data")
    before = contents(tmp_path / "data")
    monkeypatch.setattr("cppo_lab.data.prepare.write_rows", full)
    with pytest.raises(OSError, match="No space") as error:
        prepare("sample", tmp_path / "data")
    assert error.value.filename == str(tmp_path / "data")
    assert contents(tmp_path / "data") == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_keys_that_are_null_are_those_of_other_rows(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "2 + 2?"}]
    rows = [
        {"problem": "p", "messages": None, "prompt": None, "answer": "1"},
        {"problem": None, "messages": asked, "prompt": None, "answer": "4"},
    ]
    prepare(str(write_parquet(tmp_path / "mine.parquet", rows)), tmp_path / "data")
    made = read_parquet(tmp_path / "data" / "train.parquet")
    assert [row["prompt"][-1]["content"] for row in made] == [f"{BEFORE}p{AFTER}", "2 + 2?"]


def own_rows(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(data)
    return path


def test_a_byte_order_mark_line_ends_of_windows_and_blank_lines_lose_no_row(tmp_path: Path) -> None:
    lines = [json.dumps({"problem": f"p{place}", "answer": place}).encode() for place in range(3)]
    plain = prepare(str(own_rows(tmp_path, b"\n".join(lines))), tmp_path / "plain")
    windows = prepare(
        str(own_rows(tmp_path, b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines) + b"\r\n")), tmp_path / "windows"
    )
    assert plain["train.parquet"].rows == 3
    assert plain["train.parquet"].content_sha256 == windows["train.parquet"].content_sha256


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


def test_a_damaged_row_is_named_by_its_line_or_skipped_and_counted(tmp_path: Path) -> None:
    file = own_rows(tmp_path, DAMAGED)
    with pytest.raises(UserError, match="line 2 is not a row in JSON"):
        prepare(str(file), tmp_path / "data")
    said: list[str] = []
    record = prepare(str(file), tmp_path / "data", said.append, skip=True)["train.parquet"]
    assert (record.rows, record.rows_skipped) == (2, 6)
    numbers = [int(line.partition(", line ")[2].split()[0].rstrip(":")) for line in said]
    assert numbers == [2, 4, 6, 7, 8]  # the first five
    assert check_folder(tmp_path / "data")["train.parquet"].rows_skipped == 6


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_messages_and_validation_sets_of_ones_own(tmp_path: Path, write: Any) -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    file = write(
        tmp_path / f"mine.{'jsonl' if write is write_jsonl else 'parquet'}",
        [{"messages": asked, "answer": "4"}],
    )
    records = prepare(str(file), tmp_path / "data", validation={"held": file})
    assert list(records) == ["train.parquet", "held.parquet"]
    (row,) = read_parquet(tmp_path / "data" / "held.parquet")
    assert (row["prompt"], row["reward_model"]["ground_truth"]) == (asked, "4")
    assert row["data_source"] == "held"  # by which verl separates validation sets
