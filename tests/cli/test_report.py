"""`cppo report`: what is asked of it, how it watches, and what is kept of it in MLflow."""

import html
import io
import json
import re
import socket
from http.client import RemoteDisconnected
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.analysis.inputs import Baseline
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import run_lock
from cppo_lab.runs.spool import add_evaluation
from cppo_lab.sweep.launch import launch
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import Command
from tests.jobs import planned
from tests.recorded import mlflow_client, mlflow_runs

pytestmark = pytest.mark.usefixtures("undrawn")

REPORT = "report quickstart variant=cppo"


def launched(seed: str) -> None:
    launch(planned(f"quickstart launcher=inline variant=cppo {seed}"), tracking_uri())


@pytest.fixture
def trained(workspace: Path, no_training: None) -> Path:
    """A store with the runs of one variant of the quickstart."""
    launched("seed=0")
    return workspace


def parent() -> Run:
    [parent] = mlflow_runs(tag=schema.TAG_SWEEP_PARENT)
    return parent


def test_a_terminal_shows_each_step_in_its_place_and_it_need_not_be_kept(
    trained: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", screen := io.StringIO())
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    cppo(f"{REPORT} seed=0,1 --partial --no-log")
    steps = [text.removesuffix(" ...") for text in screen.getvalue().split("\r\x1b[K")]
    assert steps[:3] == ["", "reading the tracking store", "scoring 2 runs"]
    assert steps[3].startswith("scored 1 run; drawing ") and steps[4:] == ["writing the page", ""]
    assert schema.TAG_REPORT not in parent().data.tags


def test_it_is_made_and_kept_in_mlflow(trained: Path, cppo: Command) -> None:
    [drawing, *others] = [line.removeprefix("cppo: ") for line in cppo(f"{REPORT} seed=0").err.splitlines()]
    assert re.fullmatch(r"scored 1 run; drawing \d+ figures", drawing)
    assert others == ["writing the page", "keeping the report in MLflow"]
    tags = parent().data.tags
    assert "index.html" in tags[schema.TAG_REPORT]
    assert "### Verdict" in tags[schema.TAG_NOTE]
    assert "From the report (cppo report quickstart variant=cppo seed=0; core=mini" in tags[schema.TAG_NOTE]
    page = trained / "reports" / "build" / "quickstart" / "index.html"
    assert "Overrides: <code>variant=cppo seed=0</code>" in page.read_text()
    page.write_text("spoiled")
    assert cppo(f"{REPORT} seed=0").out == "report: reports/build/quickstart/index.html\n"
    assert "spoiled" not in page.read_text()  # it is made again each time it is asked for
    assert "replaced" not in cppo(f"{REPORT} seed=0 --partial").err
    other = cppo(f"{REPORT} seed=0,1 --partial --no-log").err
    assert (
        f"this replaced the report of `cppo {REPORT} seed=0 --partial`; --out FOLDER keeps both"
        in " ".join(other.split())
    )


def test_it_is_watched_until_every_run_is_a_result(
    trained: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        launched(f"seed={len(paused)}")

    monkeypatch.setattr("cppo_lab.cli.reporting.sleep", pause)
    said = cppo(f"{REPORT} seed=1,2 --no-log --watch --partial --every 7").err
    assert paused == [7.0, 7.0]
    lines = ("has no validation score yet", "1 of 2 runs have a result", "2 of 2 runs have a result")
    assert re.search(".*".join(lines), said, re.DOTALL)


def test_a_store_that_is_not_there_yet_is_waited_for(
    trained: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = f"{REPORT} seed=0 --no-log --watch --partial"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///later.db")
    monkeypatch.setattr("cppo_lab.cli.reporting.sleep", lambda _: monkeypatch.delenv("MLFLOW_TRACKING_URI"))
    assert re.search(r"later\.db does not exist: run .*1 of 1 runs have a result", cppo(watch).err, re.DOTALL)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///broken.db")
    Path("broken.db").write_text("no database" * 99)
    assert "cannot be read" in cppo(watch, code=3).err


def test_ctrl_c_ends_the_watch_and_json_says_where_the_page_is(
    trained: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.cli.reporting.sleep", Mock(side_effect=KeyboardInterrupt))
    answer = cppo(f"{REPORT} seed=0,7 --no-log --partial --watch --json").answer
    assert answer["page"] == "reports/build/quickstart/index.html"


def test_the_dashboard_shows_report_and_states_while_runs_go_on(
    trained: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "127.0.0.1:{1}".format(*listener.getsockname())
    answers: list[tuple[str | None, str]] = []

    def look(seconds: float) -> None:
        with urlopen(f"http://{address}/?x") as answer:
            answers.append((answer.headers["Refresh"], answer.read().decode()))
        if len(answers) == 2:
            raise KeyboardInterrupt
        with pytest.raises(HTTPError, match="403"):  # a name that another site gave this machine
            urlopen(Request(f"http://{address}/", headers={"Host": "evil.example:80"}))
        urlopen(Request(f"http://{address}/", headers={"Host": "localhost"})).close()  # at port 80
        with urlopen(f"http://{address}/report.json") as answer:
            assert json.load(answer)["name"] == "quickstart"
        with pytest.raises(RemoteDisconnected):
            urlopen(f"http://{address}/a%00b")
        launched("seed=1")

    monkeypatch.setattr("cppo_lab.cli.reporting.sleep", look)
    monkeypatch.setattr("cppo_lab.cli.ui.time", SimpleNamespace(sleep=look))
    said = cppo(f"dash quickstart variant=cppo seed=0,1 --every 3 --port {address.rpartition(':')[2]}")
    assert said.out == f"http://{address}\n"
    assert "a request was not answered: ValueError" in said.err and "Traceback" not in said.err
    assert [every for every, _ in answers] == ["3", None]
    first, last = (page for _, page in answers)
    assert "2 runs: 1 done, 1 missing" in first and "2 runs: 2 done" in last
    assert all('<section id="scores">' in page for page in (first, last))
    assert not (trained / "reports").exists()


def test_a_store_that_does_not_take_it_costs_a_line(
    trained: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Mock(side_effect=UserError("tracking store x failed: gone"))
    with monkeypatch.context() as patched:
        patched.setattr("cppo_lab.tracking.page.keep_report", away)
        said = cppo(f"{REPORT} seed=0")
    assert "report: reports/build/quickstart/index.html" in said.out
    last = "cppo: the report was not uploaded to MLflow: tracking store x failed: gone"
    assert said.err.splitlines()[-1] == last
    cppo(f"{REPORT} seed=0")  # made up for
    assert schema.TAG_REPORT in parent().data.tags


def test_notes_are_in_mlflow_and_on_the_page(trained: Path, cppo: Command) -> None:
    [folder] = (path.parent for path in (trained / "runs").glob("*/status.json"))
    with run_lock(folder):  # as while it trains
        add_evaluation(folder, 28, {schema.evaluation_metric("chain_far", 16): 0.4525})
        # As from a shell whose locale has no encoding.
        asked = "é".encode().decode("ascii", errors="surrogateescape")
        tags = ("--tag", "looked=yes", "--tag", f"asked={asked}")
        cppo("note", folder.name[:6], *tags, "Node 3 was", "<b>slow</b>")
    note = "Node 3 was <b>slow</b>\n\nagain"
    assert cppo(f"note {folder.name}", "again").out == f"{note}\nlooked=yes\nasked=é\n"
    for key in ("cppo.status", "mlflow.user", "a//b", "../a", "/a", "a/", ".", ""):
        assert "is none of `cppo.`" in cppo(f"note {folder.name} --tag {key}=done", code=2).err
    assert "more than 5000 characters" in cppo(f"note {folder.name}", "x" * 4990, code=2).err
    noted = {schema.TAG_NOTE: note, "looked": "yes", "asked": "é", schema.TAG_STATUS: "done"}
    for _ in range(2):
        [run] = mlflow_runs()
        assert run.data.tags.items() >= noted.items()
        mlflow_client().delete_run(run.info.run_id)
        cppo("sync")  # sends all of it again
    cppo(f"{REPORT} seed=0 --no-log")
    page = (trained / "reports/build/quickstart/index.html").read_text()
    assert f">chain_far 45.25; {html.escape(note)}; asked=é; looked=yes</td>" in page
    # As a colleague may have it.
    assert r"steers=\x1b[2J" in cppo(f"note {folder.name} --tag", "steers=\x1b[2J").out


SPANS = """\
title: Spans
question: Which span?
models: [mini_base]
variants:
  own: {rule: cppo, rule.position_span: own}
  padded: {rule: cppo, rule.position_span: padded}
  grpo: {rule: grpo}
baseline: BASELINE
axes: {AXIS, seed: [0]}
"""


def at_own(key: str, *values: object) -> dict[str, str]:
    """Both spans at each value of an axis -> `own` there."""
    return {f"{name} {key}={x}": f"own {key}={x}" for name in ("own", "padded") for x in values}


@pytest.mark.parametrize(
    "named, axis, expected",
    [
        ("own", "rule.w_min: [0.6, 0.8]", Baseline("own", at_own("w_min", 0.6, 0.8))),
        ("own w_min=0.8", "rule.w_min: [0.6, 0.8]", Baseline("own w_min=0.8")),
        ("grpo", "rule.w_min: [0.6, 0.8]", Baseline("grpo")),
        # A setting of all runs: GRPO, which has no such constant, is compared, too.
        ("own", "rule.w_min: [0.6]", Baseline("own", at_own("w_min", 0.6) | {"grpo": "own w_min=0.6"})),
        # Null is a value; the effects of a factorial sweep are asked for.
        (
            "own\nanalysis: factorial",
            "rule.ratio_cap: [null, 20.0]",
            Baseline("own", at_own("ratio_cap", "null", 20)),
        ),
    ],
)
def test_a_baseline_of_several_values_is_matched_by_value(
    cppo: Command, monkeypatch: pytest.MonkeyPatch, named: str, axis: str, expected: Baseline
) -> None:
    Path("spans.yaml").write_text(SPANS.replace("BASELINE", named).replace("AXIS", axis))
    Path("mlflow.db").touch()  # the plan alone is asked
    monkeypatch.setattr("cppo_lab.cli.reporting._report_runs", made := Mock(return_value=Path("page")))
    cppo("report spans.yaml")
    request = made.call_args.args[1][0]
    assert (request.sweeps[0].baseline, request.factorial) == (expected, "factorial" in named)
