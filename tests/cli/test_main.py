"""The command line as a user meets it: help at once, a report of what was launched, hints that can be typed."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cppo_lab import plugins
from cppo_lab.cli import main
from cppo_lab.sweep.overrides import parse_override
from tests.conftest import ROOT, Command, python

# Runs each of the commands in a process that cannot import some packages, and prints what they execute and return.
WITHOUT = """\
import importlib.abc, json, sys
from pathlib import Path
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from cppo_lab.cli import main
import cppo_lab
project, files = str(Path(cppo_lab.__file__).parent), set()
def note(frame, event, argument):
    if event == "call" and not frame.f_code.co_name.startswith("<"):
        files.add(frame.f_code.co_filename)
for line in json.loads(sys.argv[1]):
    files.clear()
    sys.setprofile(note if {trace} else None)
    try: code = main(line.split())
    except SystemExit as end: code = end.code
    sys.setprofile(None)
    print("\\nended:", code, *(name for name in files if name.startswith(project)), flush=True)
"""
READING = {"mlflow", "sqlalchemy", "torch", "submitit", "numpy", "pandas", "scipy", "matplotlib", "optuna"}
STARTING = READING | {"hydra", "omegaconf", "pydantic", "yaml"}
TRAINING = {"torch", "submitit", "psutil", "optuna", "verl", "ray", "transformers"}
SMALL = "quickstart seed=0 variant=cppo,grpo"


def without(names: set[str], *lines: str, trace: bool = False) -> tuple[list[int], list[list[str]], str, str]:
    """Of commands in one process that cannot import `names`: exit codes, files executed (with `trace`, which makes
    them slow), output and errors.
    """
    done = python("-c", WITHOUT.format(names=names, trace=trace), json.dumps(lines))
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended: ")]
    return [int(code) for code, *_ in ended], [files for _, *files in ended], done.stdout, done.stderr


def test_help_loads_nothing_heavy_and_lists_the_groups() -> None:
    """The promise is half a second; what would break it is an import, so that is what is tested."""
    commands = ["plan", "launch", "show", "report", "status", "retry"]
    codes, _, said, _ = without(STARTING, "--help", *(f"{command} --help" for command in commands))
    assert codes == [0] * 7
    whole, *pages = said.split("\nended: ")
    assert "plan" in whole and "reference" in whole
    assert all("  launcher=inline, local, slurm\n" in page and "topk_tv" in page for page in pages[:-1])


def test_commands_need_no_libraries_but_their_own_and_name_what_is_missing(
    cppo: Command, no_training: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that look need no heavy ones and ask no store; reports need no trainer."""
    cppo(f"launch {SMALL} launcher=inline")
    one, two = sorted(path.parent.name for path in Path("runs").glob("*/config.json"))
    lines = [f"plan {SMALL}", f"show {one}", f"show {SMALL}", f"diff {one} {two}", f"status {SMALL}"]
    lines += [f"logs {one}", f"watch {SMALL}", f"cancel {SMALL}", "compare no_report no_report", "status"]
    codes, _, said, errors = without(READING, *lines)
    assert codes == [0] * 8 + [2, 0], errors
    assert "is not installed" not in errors
    assert said.count(" done") >= 4
    report, launch = (
        f"report {SMALL} --out page --partial --no-log",
        "launch quickstart variant=dppo launcher",
    )
    before = {*Path().iterdir(), *Path("runs").iterdir(), Path("page")}
    codes, _, _, said = without(
        TRAINING, f"launch {SMALL} --dry-run", report, f"{launch}=inline", f"{launch}=local"
    )
    assert codes == [0, 0, 5, 5]
    assert Path("page/index.html").is_file() and before == {*Path().iterdir(), *Path("runs").iterdir()}
    errors = [line for line in said.splitlines() if line.startswith("cppo: error: ")]
    for error, package in zip(errors, ("torch", "submitit"), strict=True):
        assert error.startswith(f"cppo: error: package {package!r} is not installed: pip install ")
        assert "cppo-lab[" not in error
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    codes, [of_plan, of_status], _, errors = without(READING, f"plan {SMALL}", "status", trace=True)
    assert codes == [0, 0], errors
    # `status` builds the parser of no other command, and knows Slurm only where jobs were submitted to it.
    assert len(of_status) <= 15, of_status
    assert not any("slurm" in name or "training" in name for name in of_status)
    assert len(of_plan) <= 36


REQUIRES = ("pydantic>=2", 'torch<3,>=2.4; extra == "train"', 'cppo-lab[train]; extra == "all"')
PACKAGES = "pip install 'torch<3,>=2.4'"


@pytest.mark.parametrize(
    "url, editable, command",
    [
        ("FOLDER", True, "pip install -e 'FOLDER[train]'"),
        ("FOLDER", False, "pip install 'FOLDER[train]'"),
        ("", False, PACKAGES),
        ("file:///gone/cppo_lab-0.1.0-py3-none-any.whl", False, PACKAGES),
        ("https://example.org/x.whl", False, PACKAGES),
    ],
)
def test_an_extra_is_installed_as_the_package_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, editable: bool, command: str
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    origin = {"url": url.replace("FOLDER", folder.as_uri()), "dir_info": {"editable": editable}}
    files = {"direct_url.json": json.dumps(origin) if url else None}
    installed = SimpleNamespace(requires=REQUIRES, read_text=files.__getitem__)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: installed)
    assert plugins.install_extra("train") == command.replace("FOLDER", str(folder))
    assert plugins.remedy("torch") == plugins.install_extra("train")
    assert plugins.remedy("pydantic") == "pip install 'pydantic>=2'"
    assert plugins.remedy("stranger") == "pip install stranger"


def test_a_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.metadata.distribution", Mock(side_effect=metadata.PackageNotFoundError("it"))
    )
    assert plugins.remedy("torch") == "pip install torch"
    assert plugins.install_extra("train") == "install this package again with its extra 'train'"


@pytest.mark.parametrize("storage", ["circle.journal", "sqlite:///circle.db"])
def test_a_circular_link_is_no_storage(cppo: Command, storage: str) -> None:
    link = Path(storage.rpartition("/")[2])
    link.symlink_to(link)
    said = cppo(f"tune tune_cppo --dry-run --storage {storage}", code=2).err
    assert f"storage '{storage}' is a circular link: name another file" in said


def test_half_a_sweep_is_refused_or_marked(
    cppo: Command, workspace: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None, no_training: None
) -> None:
    """On a store named from outside. A whole one: tests/test_main_job.py."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workspace}/tracking.db?timeout=30")
    assert "note: tracking database" in cppo("plan quickstart").err
    cppo("launch quickstart launcher=inline variant=cppo")
    assert not Path("mlflow.db").exists() and Path("tracking.db").is_file()
    assert "6 runs: 2 done, 4 missing" in cppo("plan quickstart").out
    error = cppo("report quickstart --out page", code=2).err
    assert "dppo" in error and "--partial" in error and not Path("page").exists()
    cppo("report quickstart --out page --partial")
    page = Path("page/index.html").read_text()
    assert "Incomplete" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_a_report_is_told_the_command_that_makes_it(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(return_value=Path("page"))
    monkeypatch.setattr("cppo_lab.cli.reporting._report_runs", made)
    cppo("report main --from paper --palette colorblind --partial")
    cppo("report main --from paper --out elsewhere")
    cppo("report main --from paper --figures width=3.3in,font=serif")
    asked = [call.args[1][0] for call in made.call_args_list]
    assert [(request.palette, request.style.width, request.command) for request in asked] == [
        ("colorblind", None, "cppo report main --from paper --partial --palette colorblind"),
        ("paper", None, "cppo report main --from paper"),
        ("paper", 3.3, "cppo report main --from paper --figures width=3.3in,font=serif"),
    ]


@pytest.mark.parametrize(
    "wrong, form",
    {
        "launcher.srun=[--export=ALL]": "launcher.srun=['--export=ALL']",
        "launcher.srun=[--export=ALL, --mpi=pmix]": "launcher.srun=['--export=ALL','--mpi=pmix']",
        "launcher.srun=--export=ALL": "launcher.srun=['--export=ALL']",
        "launcher.srun=pmix": "launcher.srun=['pmix']",
        "launcher.setup=[export A=b c]": "launcher.setup=['export A=b c']",
        "launcher.container.environment=[HF_TOKEN,A=B]": "launcher.container.environment=[HF_TOKEN,'A=B']",
        "launcher.python=python -m x=y": "launcher.python='python -m x=y'",
        "launcher.setup=[export A=$B]": "launcher.setup=['export A=$B']",
        'launcher.setup=[say "A=b"]': "launcher.setup=['say \"A=b']",
        "resources.partition=a,b": "resources.partition='a,b'",
        "paths.data=/a b=c": "paths.data='/a b=c'",
        "data.benchmarks=early24": "data.benchmarks=['early24']",
    }.items(),
)
def test_the_form_in_a_hint_works_when_it_is_pasted(wrong: str, form: str, cppo: Command) -> None:
    """A shell takes the outer quotes away; what remains is an override that Hydra reads."""
    said = cppo("plan quickstart launcher=slurm resources.hours=1", wrong, code=2).err
    hint = said.partition("\n")[0].rpartition(": ")[2]
    pasted = subprocess.check_output(["bash", "-c", f"printf %s {hint}"], text=True)
    assert pasted == form and parse_override(pasted).parsed is not None


def test_overrides_with_brackets_in_documents_survive_a_shell() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    places = re.findall(r"`([^`\n]*[a-z]=\[[^`\n]*)`", text)
    places += [line for line in text.splitlines() if re.match(r"(  |cppo )[^|]*[a-z]=\[", line)]
    words = [word for place in places for word in shlex.split(place.rstrip("\\").partition(" #")[0])]
    overrides = [word for word in words if re.match(r"\+*[a-z_-]+\.[a-z_.-]+=\[", word)]
    assert len(overrides) > 4
    for word in overrides:
        assert parse_override(word).parsed is not None, word


def test_a_question_may_be_left_out_and_a_title_that_ends_a_sentence_gets_no_second_stop(
    cppo: Command,
) -> None:
    rest = "models: {exact: [exact_early]}\naxes: {seed: [0]}\n"
    for question, said in (("", "mine: What?\n"), ("question: Why?\n", "mine: What? Why?\n")):
        Path("mine.yaml").write_text(f"title: What?\n{question}{rest}")
        out = cppo("plan mine.yaml").out
        assert out.startswith(said) and "1 run: 1 missing" in out


def test_a_title_that_the_terminal_cannot_show_is_printed_all_the_same(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.yaml").write_text(
        "title: λ é\nmodels: {exact: [exact_early]}\nvariants: {λ=1: {rule: cppo}}\n"
    )
    for form in ([], ["--csv"], ["--json"]):
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
        assert main(["plan", "mine.yaml", *form]) == 0
        sys.stdout.seek(0)
        assert "\\u03bb=1" in sys.stdout.read()


def test_a_command_draws_without_the_backend_of_a_notebook(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://nowhere.backend_inline")
    cppo("completion bash")
    assert os.environ["MPLBACKEND"] == "agg"  # which matplotlib reads


@pytest.mark.parametrize(
    "asked, passed",
    [
        ("error", "default"),
        (" e::UserWarning,ignore::ImportWarning", "default::UserWarning,ignore::ImportWarning"),
    ],
)
def test_warnings_that_a_user_wants_as_errors_end_neither_a_command_nor_its_processes(
    asked: str, passed: str
) -> None:
    code = (
        "import os, sys, warnings; from cppo_lab.cli import main; main(['completion', 'bash'])\n"
        "warnings.warn('a package warns')\n"
        "warnings.warn('of a file', ResourceWarning)\n"
        "print(os.environ['PYTHONWARNINGS'], sys.warnoptions)"
    )
    said = python("-c", code, env={**os.environ, "PYTHONWARNINGS": asked})
    assert said.stdout.splitlines()[-1] == f"{passed} {passed.split(',')}"
    assert "UserWarning: a package warns" in said.stderr
    assert ("of a file" in said.stderr) == (asked == "error")


def in_a_shell(words: str) -> "subprocess.CompletedProcess[str]":
    """What comes of `cppo completion` with these words."""
    command = f"env -u PYTHONUNBUFFERED {sys.executable} -m cppo_lab.cli completion {words}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", ["<&-", "--json >&-", "--json 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_an_empty_one(closed: str) -> None:
    """No file gets the number of a standard stream, where what is printed would be written into it."""
    said = in_a_shell(f"bash {closed}")
    assert said.returncode == 0 and "Traceback" not in said.stderr
    assert bool(said.stdout) == (">&-" not in closed.split())


@pytest.mark.parametrize("words", ["bash", "bash --json", "zzz", "zzz --json"])
def test_a_full_disk_below_the_output_is_an_error_with_its_code(words: str) -> None:
    """Below the errors, too."""
    said = in_a_shell(f"{words} >/dev/full")
    assert said.returncode == 2 and said.stderr.startswith("cppo: error: ")
    assert in_a_shell(f"{words} >/dev/full 2>&1").returncode == 2


def test_a_folder_that_was_removed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    said = cppo("launch quickstart --dry-run", code=2)
    assert said.err == "cppo: error: No such file or directory: go to a folder that exists\n"
