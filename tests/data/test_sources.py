"""Where rows come from: rows that cannot be used, folders, the hub."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.cli import main
from cppo_lab.data import prepare as read
from cppo_lab.data import sources
from cppo_lab.data.prepare import prepare
from cppo_lab.errors import UserError
from tests.data.made_files import dapo_row, read_parquet, shipped, write_jsonl, write_parquet


def changed(**fields: Any) -> bytes:
    return json.dumps({**dapo_row("p", "1"), **fields}).encode()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{'prompt': 1}", "is not a row in JSON"),
    "cut off": (changed()[:-9], "is not a row in JSON"),
    "a list": (b"[1, 2]", "is list, not an object"),
    "a number": (b"7", "is int, not an object"),
    "NaN": (b'{"problem": "p", "answer": NaN}', "the value NaN is not a JSON number"),
    "Infinity": (b'{"problem": "p", "answer": -Infinity}', "the value -Infinity is not a JSON number"),
    "Latin-1": ('{"problem": "für", "answer": "1"}'.encode("latin-1"), "is not UTF-8 (byte 0xfc at 14)"),
    "a huge line": (b'{"problem": "' + b"x" * 10_000_000 + b'"}', "is longer than 1048576 bytes"),
    "nested without end": (b'{"problem": ' + b"[" * 100_000, "is nested too deeply"),
    "an endless integer": (b'{"problem": "p", "answer": ' + b"9" * 9_999 + b"}", "is not a row in JSON"),
    "neither key": (b'{"question": "p", "answer": "1"}', "neither `prompt` nor `problem`"),
    "no answer": (b'{"problem": "p"}', "`answer` is missing"),
    "null answer": (b'{"problem": "p", "answer": null}', "`answer` is missing"),
    "a float answer": (b'{"problem": "p", "answer": 0.5}', "`answer` is 0.5, a binary fraction"),
    "a true answer": (b'{"problem": "p", "answer": true}', "`answer` is True"),
    "a list answer": (b'{"problem": "p", "answer": ["1"]}', "`answer` is ['1']"),
    "an empty answer": (b'{"problem": "p", "answer": "  "}', "`answer` is '  '"),
    "a long answer": (b'{"problem": "p", "answer": "' + b"1" * 1_001 + b'"}', "`answer` has 1001 characters"),
    "an empty problem": (b'{"problem": "", "answer": "1"}', "`problem` is ''"),
    "a number as problem": (b'{"problem": 5, "answer": "1"}', "`problem` is 5"),
    "a long problem": (b'{"problem": "' + b"x" * 100_001 + b'", "answer": "1"}', "has 100001 characters"),
    "half a surrogate": (b'{"problem": "a\\ud800", "answer": "1"}', "half a surrogate pair at character 1"),
    "prompt as text": (changed(prompt="p"), "`prompt` is 'p'"),
    "no message": (changed(prompt=[]), "`prompt` is []"),
    "two messages": (changed(prompt=[{"role": "user", "content": "a"}] * 2), "list of one message"),
    "a system message": (changed(prompt=[{"role": "system", "content": "a"}]), "list of one message"),
    "a message without text": (changed(prompt=[{"role": "user"}]), "`prompt`: `content` is missing"),
    "no reward model": (changed(reward_model=None), "`reward_model` is missing"),
    "reward model as text": (changed(reward_model="1"), "`reward_model` is '1'"),
    "no ground truth": (changed(reward_model={"style": "rule"}), "`ground_truth` is missing"),
    "a number as data source": (changed(data_source=3), "`data_source` is 3"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_row_that_cannot_be_used_is_one_error_that_says_where(tmp_path: Path, name: str) -> None:
    line, told = HOSTILE[name]
    path = tmp_path / "train.jsonl"
    path.write_bytes(changed() + b"\n\n" + line + b"\n" + changed() + b"\n")
    with pytest.raises(UserError) as error:
        prepare(str(path), tmp_path / "data")
    assert str(error.value).startswith(f"{path}, line 3")
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700
    assert not (tmp_path / "data").exists()


def test_a_line_of_gigabytes_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room on disk
    with pytest.raises(UserError, match="line 1 is longer than"):
        next(read.rows_of(path))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"problem": "p", "answer": float("nan")}], "row 1: `answer` is nan, not a number"),
        ([{"problem": "p", "answer": 70.0}], "row 1: `answer` is 70.0, a binary fraction"),
        ([{"problem": "p", "answer": "1"}, {"problem": None, "answer": "1"}], "row 2: `problem` is missing"),
        ([{"question": "p"}], "has the columns ['question']"),
        ([], "has the columns []"),
        ([{"problem": b"\xff\xfe", "answer": "1"}], "row 1: `problem` is b'\\xff\\xfe'"),
    ],
)
def test_parquet_rows_that_cannot_be_used(tmp_path: Path, rows: list[dict[str, Any]], told: str) -> None:
    path = write_parquet(tmp_path / "train.parquet", rows)
    with pytest.raises(UserError) as error:
        prepare(str(path), tmp_path / "data")
    assert told in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello, world", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_a_file_that_is_not_parquet(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as parquet after row 0"):
        prepare(str(path), tmp_path / "data")


def test_a_benchmark_prompt_outside_the_template_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [dapo_row("p", "1")])
    bare = dapo_row("p", "1") | {"prompt": [{"role": "user", "content": "Find x."}]}
    write_jsonl(tmp_path / "aime24.jsonl", [bare])
    with pytest.raises(
        UserError, match=r"line 1: `prompt` of a aime24 row is 'Find x.', not a problem in DAPO's"
    ):
        prepare(str(tmp_path), tmp_path / "data")


@pytest.mark.parametrize("answer", ["1000", "-1", "x", "1.0"])
def test_an_aime_answer_is_a_whole_number_below_1000(tmp_path: Path, answer: str) -> None:
    write_jsonl(tmp_path / "train.jsonl", [dapo_row("p", "1")])
    write_jsonl(tmp_path / "aime26.jsonl", [{"problem": "p", "answer": answer}])
    with pytest.raises(UserError, match="AIME answers are whole numbers from 0 to 999"):
        prepare(str(tmp_path), tmp_path / "data")


def test_paths_that_name_no_training_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder; valid: hub, sample"):
        prepare(str(tmp_path / "absent"), tmp_path / "data")
    with pytest.raises(UserError, match="holds no training set"):
        prepare(str(tmp_path), tmp_path / "data")
    (tmp_path / "train.csv").write_text("problem,answer")
    with pytest.raises(UserError, match=r"is neither .jsonl nor .parquet"):
        prepare(str(tmp_path / "train.csv"), tmp_path / "data")
    write_jsonl(tmp_path / "train.jsonl", [])
    with pytest.raises(UserError, match="holds no row to train on"):
        prepare(str(tmp_path), tmp_path / "data")
    write_parquet(tmp_path / "train.parquet", [dapo_row("p", "1")])
    with pytest.raises(UserError, match=r"several files for train \(train.jsonl, train.parquet\): leave one"):
        prepare(str(tmp_path), tmp_path / "data")


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Files in the layouts of the four pinned data sets, and a hub that hands them out."""
    folder = tmp_path / "hub"
    folder.mkdir()
    rows = [dapo_row(f"problem {place}", str(place), f"uuid-{place}") for place in range(5)]
    aime24 = [
        dapo_row(row["problem"], row["answer"], f"{place}") for place, row in enumerate(shipped("aime24"))
    ]
    arena = [
        {"problem_idx": place + 1, "problem": row["problem"], "answer": int(row["answer"])}
        for place, row in enumerate(shipped("aime25"))
    ]
    files = {
        "train": write_parquet(folder / "dapo.parquet", rows * 100),
        "aime24": write_parquet(folder / "aime24.parquet", aime24 * 32),
        "aime25": write_parquet(folder / "aime25.parquet", arena),
        "aime26": write_parquet(folder / "aime26.parquet", arena),
    }
    asked = {(pin.repository, pin.revision, pin.file): files[split] for split, pin in sources.HUB.items()}

    def download(repository: str, file: str, *, repo_type: str, revision: str) -> str:
        assert repo_type == "dataset"
        return str(asked[repository, revision, file])

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)

    def pin() -> Path:
        for split, path in files.items():
            monkeypatch.setitem(
                sources.HUB, split, replace(sources.HUB[split], sha256=sources.sha256_of(path))
            )
        return folder

    return pin


def test_the_layouts_of_the_hub(fake_hub: Callable[[], Path], tmp_path: Path) -> None:
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
    for name in ("aime24", "aime25"):
        from_hub, ours = (
            [
                (row["data_source"], row["prompt"], row["reward_model"])
                for row in read_parquet(tmp_path / folder / f"{name}.parquet")
            ]
            for folder in ("data", "sample")
        )
        assert from_hub == ours
    [first, *_] = read_parquet(tmp_path / "data" / "aime25.parquet")
    assert first["extra_info"] == {"index": 0, "split": "aime25", "id": "aime25-0"}


def test_a_file_of_the_hub_that_is_not_the_pinned_one_is_refused(
    fake_hub: Callable[[], Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"has sha256 [0-9a-f]{64}, not 534375d6"):
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
    with pytest.raises(UserError, match=r"BytedTsinghua-SIA/DAPO-Math-17k.*HF_HUB_OFFLINE.*--from PATH"):
        prepare("hub", tmp_path / "data")


def test_the_commands(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare"]) == 0
    assert (
        "train.parquet        8 rows (8 read) from shipped:dapo_math_sample.jsonl" in capsys.readouterr().out
    )
    assert main(["data", "check", "data"]) == 0
    assert "aime26.parquet      30 rows (30 read)" in capsys.readouterr().out
    assert main(["data", "prepare"]) == 0
    assert "data: unchanged" in capsys.readouterr().err
    (workspace / "data" / "aime24.parquet").write_bytes(b"x")
    assert main(["data", "check", "data"]) == 2
    assert "aime24.parquet is changed (sha256 " in capsys.readouterr().err
    assert main(["data", "prepare", "--from", "nowhere"]) == 2
    assert "--from nowhere: no such file or folder" in capsys.readouterr().err
    rows = [dapo_row("p", "1"), dapo_row("q", "1"), dapo_row("q", "2")] * 2
    write_jsonl(workspace / "train.jsonl", rows)
    assert main(["data", "prepare", "--from", "train.jsonl", "--out", "other"]) == 0
    out = capsys.readouterr().out
    assert "1 rows (6 read, 1 repeats dropped, 4 rows of 1 prompts with several answers dropped) from" in out
