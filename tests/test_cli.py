"""The command line as a user meets it: help at once, one line per mistake, nothing written by a mistake."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.runs import attempt as execute
from cppo_lab.runs.recorder import Recorder
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import ensure_experiment, open_client
from tests.conftest import FINISHED, TINY
from tests.plausible import train
from tests.recorded import sent

SWEEP = ["quickstart", *TINY]


def test_help_loads_nothing_heavy() -> None:
    """The promise is half a second; what would break it is an import, so that is what is tested."""
    code = (
        "import sys\nfrom cppo_lab.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'mlflow', 'hydra', 'omegaconf', 'pydantic', 'pandas', 'matplotlib', 'submitit', 'yaml'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout
    assert "plan" in done.stdout
    assert "reference" in done.stdout


def test_a_query_in_the_uri_of_the_store(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///q.db?timeout=30")
    monkeypatch.setattr(execute, "load_core", lambda name: train)
    assert main(["launch", "quickstart", "seed=0", "variant=grpo", "launcher=inline"]) == 0
    assert (workspace / "q.db").is_file()


def test_report_on_an_empty_store(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = tracking_uri()
    ensure_experiment(open_client(uri), uri, schema.experiment_name("mini"))
    assert main(["report", *SWEEP]) == 2
    error = capsys.readouterr().err
    assert "`cppo launch` with the same sweep and overrides" in error
    assert error.count("\n") == 1
    assert not (workspace / "reports").exists()


def test_plan_launch_report(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store named from outside: half a sweep is refused, then marked, then whole."""
    monkeypatch.setattr(execute, "load_core", lambda name: train)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workspace}/store/tracking.db")
    (workspace / "store").mkdir()
    assert main(["launch", "quickstart", "launcher=inline", "variant=grpo,cppo"]) == 0
    assert not (workspace / "mlflow.db").exists()
    capsys.readouterr()
    assert main(["plan", "quickstart"]) == 0
    assert "6 runs: 4 done, 2 missing" in capsys.readouterr().out

    assert main(["report", "quickstart", "--out", "page"]) == 2
    error = capsys.readouterr().err
    assert "dppo" in error
    assert "--partial" in error
    assert not (workspace / "page").exists()
    assert main(["report", "quickstart", "--out", "page", "--partial"]) == 0

    assert main(["launch", "quickstart", "launcher=inline"]) == 0
    assert main(["report", "quickstart", "--out", "page"]) == 0
    names = {path.name for path in (workspace / "page").iterdir()}
    tables = {f"table_{table}.{kind}" for table in ("main", "full") for kind in ("md", "tex", "csv")}
    curves = {f"figure_curves.{kind}" for kind in ("png", "svg", "pdf", "csv")}
    assert names >= {"index.html", *tables, *curves}
    with (workspace / "page" / "table_main.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["grpo", "dppo", "cppo"]
    page = (workspace / "page" / "index.html").read_text()
    assert "core=mini" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_running_run_is_not_reported_as_a_result(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose curve is complete but whose process has not finished it is no result yet."""
    spec = compose([*TINY, "rule=grpo", "seed=0"]).run
    folder = workspace / "runs" / spec.run_id
    folder.mkdir(parents=True)
    recorder = Recorder(spec, {schema.sweep_tag("quickstart"): "grpo"}, folder)
    for step in (0, 2, 4):
        recorder.log(
            step, {schema.validation_metric(name): 0.5 for name in (*spec.data.benchmarks, schema.MEAN)}
        )
    sent(folder)
    assert main(["report", *SWEEP, "variant=grpo", "seed=0"]) == 2
    assert "grpo" in capsys.readouterr().err
    recorder.finish(FINISHED)
    sent(folder)
    assert main(["report", *SWEEP, "variant=grpo", "seed=0"]) == 0


def test_a_report_is_told_the_command_that_makes_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cppo_lab.cli import reporting
    from cppo_lab.reports.sweep import ReportRequest

    asked: list[ReportRequest] = []

    def made(options: object, wanted: tuple[ReportRequest, object]) -> Path:
        asked.append(wanted[0])
        return Path("page")

    monkeypatch.setattr(reporting, "_report_runs", made)
    assert main(["report", "main", "--from", "paper", "--palette", "colorblind", "--partial"]) == 0
    assert main(["report", "main", "--from", "paper", "--out", "elsewhere"]) == 0
    assert main(["report", "main", "--from", "paper", "--figures", "width=3.3in,font=serif"]) == 0
    capsys.readouterr()
    assert [(request.palette, request.style.width, request.command) for request in asked] == [
        ("colorblind", None, "cppo report main --from paper --partial --palette colorblind"),
        ("paper", None, "cppo report main --from paper"),
        ("paper", 3.3, "cppo report main --from paper --figures width=3.3in,font=serif"),
    ]
    assert main(["report", "gone", "--figures", "width=3"]) == 2  # said before the sweep is looked for
    said = capsys.readouterr().err
    assert "--figures 'width=3': a width is a number with in, cm, mm or pt" in said and "gone" not in said
