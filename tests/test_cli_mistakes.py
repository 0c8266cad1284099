"""Mistakes that used to pass for something else: a store that is not there, a file that is no sweep, half an id."""

from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.tracking.client import fault_line

TWO = """\
title: Two
question: Q?
models: [mini_base]
variants:
  low: {rule: cppo, rule.w_min: 2}
  high: {rule: cppo, rule.delta: -1}
  good: {rule: cppo}
"""


def error(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.partition("\n")[0]


@pytest.mark.parametrize(
    "words",
    [["plan", "quickstart"], ["status"], ["status", "quickstart"], ["launch", "quickstart"], ["sync"]],
)
def test_a_store_in_a_folder_that_does_not_exist(
    words: list[str], workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workspace}/nowhere/x.db")
    assert main(words) == 3
    assert "nowhere/x.db does not exist, and neither does its folder" in error(capsys)
    assert list(workspace.iterdir()) == []


def test_a_store_that_is_named_and_not_there_yet(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "quickstart"]) == 0
    assert capsys.readouterr().err == ""  # the store of the working folder is made by the first launch
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workspace}/new.db")
    assert main(["plan", "quickstart"]) == 0
    assert "note: tracking database" in error(capsys)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lanch", "quickstart"], "unknown command 'lanch': did you mean 'launch'?"),
        (["data", "chek", "data"], "unknown action 'chek': did you mean 'check'?"),
        (
            ["plan", "quickstart", "--statte", "done"],
            "unrecognized arguments: --statte done: see `cppo plan --help`",
        ),
    ],
)
def test_the_usage_of_the_command_is_beside_its_mistake(
    words: list[str], says: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    line, usage, *_ = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cppo: error: {says}")
    command = " ".join(["cppo", *(words[:1] if words[0] in ("plan", "data") else [])])
    assert usage.startswith(f"usage: {command} [-h]")


@pytest.mark.parametrize("words", [["logs", "a"], ["cancel", "--run", "abc"], ["show", "abc", "--run", "x"]])
def test_ids_that_are_too_short(
    words: list[str], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "runs" / "abc123abc123").mkdir(parents=True)
    assert main(words) == 2
    text = error(capsys)
    assert "give 4 to 12 hexadecimal digits" in text or "unknown sweep" in text


def test_files_that_are_no_sweeps(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "settings.yaml").write_text("host: a\nport: 1\n")
    (workspace / "notes").write_text("title: T\n")
    assert main(["plan", "settings.yaml"]) == 2
    assert "settings.yaml is no sweep file: it has the keys host, port" in error(capsys)
    assert main(["plan", "notes"]) == 2
    assert "notes is a file, but a sweep file ends with .yaml" in error(capsys)


def test_all_mistakes_of_a_sweep_file_at_once(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "two.yaml").write_text(TWO)
    assert main(["plan", "two.yaml"]) == 2
    text = error(capsys)
    assert "variants.low.rule.w_min=2: must be in (0, 1]" in text
    assert "; also: variants.high.rule.delta=-1: must be in (0, inf)" in text
    (workspace / "two.yaml").write_text("title: 1\nmodels: [mini_base]\nvariannts: {}\nfeeds: [Fig 1]\n")
    assert main(["plan", "two.yaml"]) == 2
    text = error(capsys)
    for part in (
        "'variannts': did you mean 'variants'",
        "title=1: must be text",
        "question is missing",
        "feeds.0='Fig 1'",
    ):
        assert part in text


def test_a_server_that_does_not_answer_is_one_short_sentence() -> None:
    refused = OSError(
        "API request to http://h:1/api failed: HTTPConnectionPool(host='h', port=1): Max retries exceeded "
        "with url: /api (Caused by NewConnectionError(\"HTTPConnection(host='h', port=1): Failed to establish a new "
        'connection: [Errno 111] Connection refused"))'
    )
    assert fault_line(refused) == "it does not answer: Connection refused"
    slow = OSError("HTTPConnectionPool(host='h', port=1): Read timed out. (read timeout=30)")
    assert fault_line(slow) == "it does not answer: timed out"
    assert fault_line(OSError("disk I/O error")) == "disk I/O error"
