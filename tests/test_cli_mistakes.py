"""Mistakes that used to pass for something else: a store that is not there, a file that is no sweep, half an id."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.sweep.overrides import read
from cppo_lab.tracking.client import fault_line
from tests.conftest import ROOT

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
        "feeds.0='Fig 1'",
    ):
        assert part in text


HEAD = "title: T\nmodels: [mini_base]\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (  # hypotheses, and what a run's configuration says
            HEAD + "variants: {a: {rule: cppo, rule.w_min: 2}, b: {rule: dppo}}\nhypotheses:\n"
            "  h: {claim: C, better: [a], than: [z], test_seeds: [1]}\n"
            "  g: {claim: C, better: [y, x], than: [b], test_seeds: [1]}\n"
            "  f: {claim: C, better: [a], than: [b], test_seeds: []}\n",
            (
                "hypotheses.h: variant 'z' is not in variants (valid: a, b)",
                "hypotheses.g: variant 'y' is not in variants (valid: a, b)",
                "variant 'x' is not in variants (valid: a, b)",
                "hypotheses.f.test_seeds=[]: must not be empty",
                "variants.a.rule.w_min=2: must be in (0, 1]",
            ),
        ),
        (  # a key, a baseline, conditions and an axis
            HEAD + "titel: T\nvariants: {a: {rule: cppo}, b: {rule: dppo}}\nbaseline: c\n"
            "exclude: [{variant: aa}, {modell: x}]\nresources: [{for: {seed: 1}, hours: 1}]\naxes: {seeds: [1]}\n",
            (
                "unknown key 'titel': did you mean 'title'?",
                "unknown baseline 'c': valid: a, b",
                "exclude.0.variant='aa'",
                "exclude.1.modell: unknown condition 'modell': did you mean 'model'?",
                "resources.0.for.seed: unknown condition 'seed'",
                "axes.seeds=1: unknown key 'seeds': did you mean 'seed'?",
            ),
        ),
        (  # keys that belong elsewhere, and one that a variant misspells twice
            HEAD + "variants: {a: {rule: cppo, core: mini, optim.lr: 1, rule.wmin: 1}}\n"
            "axes: {layout: [cpu], launcher.workers: [1], resources.hours: [1]}\n",
            (
                "axes.layout: 'layout' is no axis",
                "axes.launcher.workers: 'launcher.workers' belongs on the command line",
                "axes.resources.hours: use resources:",
                "variants.a.core: choose it on the command line",
                "variants.a.optim.lr=1: unknown key 'optim.lr': did you mean 'optim.learning_rate'",
                "variants.a.rule.wmin=1: unknown key 'rule.wmin': did you mean 'rule.w_min'",
            ),
        ),
        (  # hypotheses that no run tests
            HEAD
            + "variants: {a: {rule: cppo}, b: {rule: dppo}}\naxes: {rule.w_min: [0.6, 0.8]}\nhypotheses:\n"
            "  h: {claim: C, better: [a], than: [b], test_seeds: [1]}\n"
            "  g: {claim: C, better: [a w_min=0.6], than: [b w_min=0.6], test_seeds: [1], after: h}\n",
            (
                "hypotheses.h: the file's axes are part of the names of variants: 'a' is 'a w_min=0.6'",
                "hypotheses.g: no run is of variant 'b w_min=0.6'",
            ),
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "launch", "show"])
def test_all_kinds_of_mistakes_at_once(
    text: str, parts: tuple[str, ...], command: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text(text)
    assert main([command, "mine.yaml"]) == 2
    line, *more = capsys.readouterr().err.splitlines()
    assert more == []  # a line each is for terminals
    said = line.removeprefix("cppo: error: sweep mine.yaml: ").split("; also: ")
    assert [part for part in parts if not any(part in fault for fault in said)] == []
    assert len(said) == len(parts)


def test_a_question_may_be_left_out(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = "models: {exact: [exact_early]}\naxes: {seed: [0]}\n"
    Path("mine.yaml").write_text(f"title: What?\n{rest}")
    Path("theirs.yaml").write_text(f"title: What?\nquestion: Why?\n{rest}")
    assert main(["plan", "mine.yaml", "--json"]) == main(["plan", "theirs.yaml", "--json"]) == 0
    mine, theirs = capsys.readouterr().out.replace("theirs", "mine").split("}\n{")
    assert mine.lstrip("{") == theirs.rstrip().removesuffix("}")
    assert main(["plan", "mine.yaml"]) == 0
    assert capsys.readouterr().out.startswith("mine: What?\n\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["lr=1"],
            "unknown key 'lr': did you mean 'optim.learning_rate' or 'model.warm_start.learning_rate'?",
        ),
        (["w_min=1"], "unknown key 'w_min': did you mean 'rule.w_min' or 'trust_region.w_min'?"),
        (["delta=1"], "unknown key 'delta': did you mean 'rule.delta' or 'trust_region.delta'?"),
        (["t_stop=1"], "unknown key 't_stop': did you mean 'training.t_stop'?"),
        (["partition=x"], "unknown key 'partition': did you mean 'resources.partition'?"),
        (
            ["training.learning_rate=1"],
            "did you mean 'optim.learning_rate' or 'model.warm_start.learning_rate'?",
        ),
        (["model=qwen3_8b"], "unknown model 'qwen3_8b': did you mean 'qwen3_8b_base'?"),
        (["model=mini"], "unknown model 'mini': did you mean 'mini_base' or 'mini_long'?"),
    ],
)
def test_the_nearest_names_of_overrides(
    words: list[str], says: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "quickstart", *words]) == 2
    assert says in error(capsys)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mine", "unknown sweep 'mine': did you mean 'mine.yaml'? valid: "),
        ("minne", "unknown sweep 'minne': did you mean 'mine.yaml'? valid: "),
        ("./mine", "sweep file ./mine does not exist: did you mean 'mine.yaml'? (shipped"),
        ("mine.yml", "sweep file mine.yml does not exist: did you mean 'mine.yaml'? (shipped"),
        (
            "sub/theirz.yaml",
            "sweep file sub/theirz.yaml does not exist: did you mean 'sub/theirs.yaml'? (shipped",
        ),
        ("other.yaml", "sweep file other.yaml does not exist (shipped"),
        ("quikstart", "unknown sweep 'quikstart': did you mean 'quickstart'? valid: "),
    ],
)
def test_files_beside_are_offered(
    name: str, near: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "mine.yaml").write_text(HEAD)
    (workspace / "sub").mkdir()
    (workspace / "sub" / "theirs.yaml").write_text(HEAD)
    assert main(["plan", name]) == 2
    assert near in error(capsys)


SLURM = ["launcher=slurm", "resources.hours=1"]


@pytest.mark.parametrize(
    ("wrong", "form"),
    [
        ("launcher.srun=[--export=ALL]", "launcher.srun=['--export=ALL']"),
        ("launcher.srun=[--export=ALL, --mpi=pmix]", "launcher.srun=['--export=ALL','--mpi=pmix']"),
        ("launcher.srun=--export=ALL", "launcher.srun=['--export=ALL']"),
        ("launcher.srun=--mpi", "launcher.srun=['--mpi']"),
        ("launcher.srun=pmix", "launcher.srun=['pmix']"),
        ("launcher.setup=[export A=b c]", "launcher.setup=['export A=b c']"),
        ("launcher.container.environment=[HF_TOKEN,NCCL_DEBUG=INFO]", None),
        ("launcher.container.mounts=/a:/b", "launcher.container.mounts=['/a:/b']"),
        ("launcher.python=python -m x=y", "launcher.python='python -m x=y'"),
        ("launcher.setup=[export A=$B]", "launcher.setup=['export A=$B']"),
        ('launcher.setup=[say "A=b"]', "launcher.setup=['say \"A=b']"),
        ("resources.partition=a,b", "resources.partition='a,b'"),
        ("paths.data=/a b=c", "paths.data='/a b=c'"),
        ("data.benchmarks=early24", "data.benchmarks=['early24']"),
    ],
)
def test_the_form_in_a_hint_works_when_it_is_pasted(
    wrong: str, form: str | None, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell takes the outer quotes away; what remains is an override that Hydra reads."""
    assert main(["plan", "quickstart", *SLURM, wrong]) == 2
    hint = error(capsys).rpartition(": ")[2]
    [pasted] = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {hint}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert form is None or pasted == form
    assert read(pasted).parsed is not None
    assert main(["plan", "quickstart", *SLURM, pasted]) in (0, 2)
    assert "as Hydra reads it" not in capsys.readouterr().err


@pytest.mark.parametrize("document", sorted((ROOT.parent / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_overrides_with_brackets_in_documents_survive_a_shell(document: Path) -> None:
    text = document.read_text()
    places = [*re.findall(r"`([^`\n]*[a-z]=\[[^`\n]*)`", text)]
    places += [line for line in text.splitlines() if re.match(r"(  |cppo )[^|]*[a-z]=\[", line)]
    for place in places:
        for word in shlex.split(place.rstrip("\\").partition(" #")[0]):
            if re.match(r"\+*[a-z_.-]+=\[", word) and "." in word.partition("=")[0]:
                assert read(word).parsed is not None, word


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
