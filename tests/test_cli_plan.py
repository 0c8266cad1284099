"""`cppo plan` for people, spreadsheets and programs; and the help that lists the configuration groups."""

import csv
import io
import json
import math
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from statistics import pvariance
from typing import Any

import numpy as np
import pytest
from scipy.stats import nct, t

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.cli.answer import HEADING
from cppo_lab.runs.folder import write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.table import ListingRow
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED, TINY
from tests.jobs import job
from tests.recorded import sent
from tests.waiting import CEILING_SECONDS

SWEEP = ["quickstart", *TINY]


@pytest.fixture
def some_states(workspace: Path) -> dict[str, str]:
    """Of the quickstart's six: one done, one failed, one interrupted. Returns run id -> state."""
    found = {}
    for rule, state in (("grpo", schema.DONE), ("dppo", schema.FAILED), ("cppo", schema.PARTIAL)):
        spec = compose([*TINY, f"rule={rule}", "seed=0"]).run
        attempt = job(spec, workspace / "runs", tracking_uri())
        attempt.folder.mkdir(parents=True)
        recorder = Recorder(spec, {schema.TAG_CODE_VERSION: "v"}, attempt.folder)
        for step in (1, 2, 3):
            recorder.log(step, {"perf/step_seconds": 3600.0})
        if state == schema.DONE:
            recorder.finish(FINISHED)
        elif state == schema.FAILED:
            recorder.fail("ValueError: " + "a long reason " * 20, "")
        else:
            recorder.interrupt("terminated by SIGTERM")
        sent(attempt.folder)
        found[spec.run_id] = state
    return found


def test_json_is_one_object_on_standard_output(
    some_states: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *SWEEP, "--json"]) == 0
    output = capsys.readouterr()
    values = json.loads(output.out)
    assert [key for key in values if key not in HEADING] == ["sweep", "core", "runs", "totals"]
    assert (values["sweep"], values["core"], len(values["runs"])) == ("quickstart", "mini", 6)
    assert all(list(run) == [field.name for field in fields(ListingRow)] for run in values["runs"])
    states = {run["run_id"]: run["state"] for run in values["runs"]}
    assert {run_id: state for run_id, state in states.items() if state != schema.MISSING} == some_states
    assert values["totals"]["states"] == {"done": 1, "failed": 1, "partial": 1, "missing": 3}
    [cost] = values["totals"]["costs"]
    assert (cost["basis"], cost["hours"], cost["hours_left"]) == ("measured", 24.0, 20.0)
    partial = next(run for run in values["runs"] if run["state"] == schema.PARTIAL)
    assert partial["step"] == 3
    assert partial["variants"] == {"quickstart": "cppo"}
    assert (partial["hours"], partial["cost_basis"], partial["measured_runs"]) == (4.0, "measured", 3)
    assert partial["code_version"] == "v"


def test_the_remedy_for_a_store_of_an_older_mlflow_is_named(
    some_states: dict[str, str], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the commands that open it; MLflow's client refuses it."""
    database = workspace / "mlflow.db"
    with closing(sqlite3.connect(database)) as store:
        store.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
        store.commit()
    assert main(["plan", *SWEEP, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["states"]["done"] == 1
    # MLflow remembers the stores that this process has opened.
    calls = "[main([one, *sys.argv[1:]]) for one in ('launch', 'report')]"
    code = f"import sys; from cppo_lab.cli import main; print({calls})"
    done = subprocess.run(
        [sys.executable, "-c", code, *SWEEP], capture_output=True, text=True, timeout=CEILING_SECONDS
    )
    assert done.stdout == "[2, 2]\n", done.stderr
    says = (
        rf"error: tracking store sqlite:///{database} is of another .*version 451aebb31d03.*mlflow db upgrade"
    )
    assert len(re.findall(says, done.stderr)) == 2, done.stderr


def test_csv_has_the_same_columns(some_states: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SWEEP, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [len(row) for row in rows] == [len(fields(ListingRow))] * 6
    assert rows[0]["variants"] == "quickstart=grpo"
    assert {row["run_id"]: row["state"] for row in rows if row["state"] != "missing"} == some_states


def test_only_some_states(some_states: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SWEEP, "--state", "failed,partial"]) == 0
    out = capsys.readouterr().out
    assert sum(line.startswith(tuple(some_states)) for line in out.splitlines()) == 2
    assert "6 runs: 1 done, 1 failed, 1 partial, 3 missing" in out
    assert "2 of 6 runs shown (--state failed,partial)" in out
    assert main(["plan", *SWEEP, "--state", "partial", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["state"] == "partial"


def test_a_reason_is_cut_on_a_terminal_only(
    some_states: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plan", *SWEEP]) == 0
    whole = capsys.readouterr().out
    assert max(len(line) for line in whole.splitlines()) > 250
    monkeypatch.setattr("cppo_lab.cli.training.width", lambda: 80)
    assert main(["plan", *SWEEP]) == 0
    table = capsys.readouterr().out.splitlines()[2:9]
    assert max(len(line) for line in table) == 80
    assert any(line.endswith("…") for line in table)
    assert [line[:60] for line in table] == [line[:60] for line in whole.splitlines()[2:9]]


def test_a_study_says_how_many_places_its_runs_fill(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "study", "seed=0"]) == 0
    assert "37 runs in 49 places: 37 missing" in capsys.readouterr().out


def test_help_lists_the_groups_and_loads_nothing_heavy() -> None:
    commands = ["plan", "launch", "show", "report", "status", "retry"]
    code = (
        f"import sys\nfrom cppo_lab.cli import main\nfor command in {commands}:\n"
        "    print(command + '!')\n    try: main([command, '--help'])\n    except SystemExit: pass\n"
        "    heavy = {'torch', 'mlflow', 'hydra', 'omegaconf', 'pydantic', 'pandas', 'matplotlib', 'submitit'}\n"
        "    print('heavy:', sorted({*heavy, 'yaml'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in commands:
        said = done.stdout.partition(f"{command}!\n")[2].partition("!\n")[0]
        assert "heavy: []" in said, command
        assert "  launcher=inline, local, slurm\n" in said, command
        assert "topk_tv" in said, command


def test_a_title_that_ends_a_sentence_gets_no_second_stop(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text(
        "title: How much weight?\nquestion: Does it matter?\nmodels: [mini_base]\n"
        "variants: {cppo: {rule: cppo}}\naxes: {seed: [0]}\n"
    )
    assert main(["plan", "./mine.yaml"]) == 0
    said = capsys.readouterr().out
    assert "mine: How much weight? Does it matter?" in said
    assert "1 run: 1 missing" in said


def test_power_says_what_the_planned_runs_can_decide(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "main", "seed=0,1,2", "--power", "--deviation=1,2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    powers = {(one["claim"], one["deviation"]): one for one in found["claims"]}
    assert (found["sweep"], found["core"], found["correlation"]) == ("main", "mini", 0.0)
    assert {one["lead"] for one in found["claims"]} == {"paper"}
    # With the paper's own effects three seeds decide the primary claim, and nothing like that decides every cell.
    assert powers["cppo_mean", 1.0]["power"] > 0.95
    assert powers["cppo_best", 1.0]["power"] < 0.05
    assert powers["cppo_best", 2.0]["seeds_needed"] > powers["cppo_best", 1.0]["seeds_needed"] > 10
    assert main(["plan", "drift_strong", "--power", "--effect=5", "--deviation=2"]) == 0
    assert "if the truth is a lead of 5 points" in capsys.readouterr().out


TREND = """
title: Longer
question: Does the lead grow?
models: [mini_base, mini_large_base, mini_long]
variants: {cppo: {rule: cppo}, dppo: {rule: dppo}}
axes: {seed: [0, 1, 2, 3, 4, 5]}
hypotheses:
  above: {claim: It is above, better: [cppo], than: [dppo], models: mean, smallest: 2.0, test_seeds: [2, 3, 4, 5]}
  grows: {claim: It grows, better: [cppo], than: [dppo], models: trend, smallest: 2.0, test_seeds: [2, 3, 4, 5]}
"""


def power_of_t(shift: float, degrees: int) -> float:
    """The power of the one-sided test at 2.5 % if the true value is `shift` standard errors."""
    return float(nct.sf(t.ppf(0.975, degrees), degrees, shift))


def test_power_of_a_sweeps_own_hypotheses(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("longer.yaml").write_text(TREND)

    def powers(*more: str) -> dict[str, dict[str, Any]]:
        assert main(["plan", "./longer.yaml", "--power", "--deviation=2", "--json", *more]) == 0
        return {one["claim"]: one for one in json.loads(capsys.readouterr().out)["claims"]}

    found = powers()
    assert {name: one["seeds"] for name, one in found.items()} == {
        "hypothesis above": 4,  # of six, two are not for the test
        "hypothesis grows": 4,
    }
    # Differences on a model have a standard error of sqrt(2) points and 3 degrees of freedom. Their mean over three
    # models, 4 points, has one of sqrt(2 / 3) points and 3 to 9 degrees of freedom.
    low, high = power_of_t(4 * 1.5**0.5, 3), power_of_t(4 * 1.5**0.5, 9)
    assert low < found["hypothesis above"]["power"] < high + 0.01
    models = ("mini_base", "mini_large_base", "mini_long")
    lengths = [compose([f"model={model}"]).run.rollout.max_response_length for model in models]
    shift = 4 * (3 * pvariance(map(math.log2, lengths)) / 2) ** 0.5  # 4 points for each doubling
    # The residuals of three models leave one degree of freedom.
    assert 0.025 < found["hypothesis grows"]["power"] < power_of_t(shift, 1) + 0.02 < power_of_t(shift, 3)
    assert powers("--effect=0.001")["hypothesis above"]["power"] < 0.05
    # With a correlation of 0.75 differences have half the deviation, as if the lead were twice as large.
    together = powers("--effect=2", "--correlation=0.75")["hypothesis above"]
    assert low < together["power"] < high + 0.01
    assert together["lead"] == 2.0
    # The number of seeds is that of the variants that are compared.
    Path("longer.yaml").write_text(
        TREND.replace("variants: {", "variants: {other: {rule: grpo}, ")
        + "exclude: [{variant: other, seed: 5}]\n"
    )
    assert powers()["hypothesis above"]["seeds"] == 4
    assert main(["plan", "./longer.yaml", "--power"]) == 0
    said = capsys.readouterr().out
    assert "a lead of twice the smallest advantage that counts" in said
    assert re.search(r"It is above +1 +4 +5 ", said) and re.search(r"It is above +1 +4 +10 ", said)
    # No lead grows with the length where there is one length.
    assert powers("model=mini_long").keys() == {"hypothesis above"}
    alone = "\n".join(line for line in TREND.splitlines() if "It is above" not in line)
    Path("longer.yaml").write_text(alone)
    assert main(["plan", "./longer.yaml", "--power", "model=mini_long"]) == 2
    assert "seed=2,3,4,5, and a trend on models of different response lengths" in capsys.readouterr().err


PLAIN = """
title: Plain
question: Which is better?
models: {exact: [exact_early], mini: [mini_quick]}
variants: {grpo: {rule: grpo}, dppo: {rule: dppo}, sapo: {rule: sapo}}
axes: {seed: [0, 1, 2, 3]}
"""


@pytest.mark.parametrize(("core", "degrees"), [("exact", 1), ("mini", 2)])
def test_power_without_claims_is_what_the_seeds_of_two_methods_show(
    workspace: Path, capsys: pytest.CaptureFixture[str], core: str, degrees: int
) -> None:
    """The exact core's runs are compared seed by seed (n - 1 degrees of freedom), those of mini by Welch."""
    Path("plain.yaml").write_text(PLAIN)
    asked = ["plan", "./plain.yaml", f"core={core}", "variant=grpo,dppo", "--power"]

    def differences(*more: str) -> list[dict[str, Any]]:
        assert main([*asked, "--json", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["claims"] == []
        rows: list[dict[str, Any]] = found["differences"]
        return rows

    assumed = differences("--deviation=2,4")
    assert [(row["seeds"], row["deviation"], row["measured"]) for row in assumed] == [
        (4, 2.0, 0),
        (4, 4.0, 0),
    ]
    for row in assumed:
        for n, points in ((int(n), points) for n, points in row["differences"].items()):
            shift = points / (row["deviation"] * math.sqrt(2 / n))
            assert power_of_t(shift, degrees * (n - 1)) == pytest.approx(0.8, abs=0.02)
    [alone] = differences("--deviation=2", "seed=0")
    assert alone["differences"]["1"] is None and alone["differences"]["3"] > 0
    # A lead is asked for: about as powerful as the same difference shown above.
    [row] = differences("--deviation=2", f"--effect={1.0001 * assumed[0]['differences']['4']}")
    assert (row["power"], row["seeds_needed"]) == (pytest.approx(0.8, abs=1e-3), 4)
    # Finished runs have a scatter of their own.
    plan = make_plan(load_sweep("./plain.yaml"), asked[2:4])
    rng = np.random.default_rng(0)
    finals = {variant: rng.normal(0.5, 0.1, 4) for variant in ("grpo", "dppo")}
    for run in plan.runs:
        folder = workspace / "runs" / run.run_id
        folder.mkdir(parents=True)
        score = float(finals[run.variant][run.spec.seed])
        write_status(folder, {"run_id": run.run_id, "status": "done", "final_mean": score})
    [measured] = differences()
    by_seed = np.std(finals["grpo"] - finals["dppo"], ddof=1) / math.sqrt(2)
    pooled = math.sqrt(np.mean([np.var(values, ddof=1) for values in finals.values()]))
    expected = 100 * (by_seed if core == "exact" else pooled)
    assert measured["deviation"] == pytest.approx(expected) and measured["measured"] == 8
    assert main(asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "8 runs" in said and ("seed by seed" in said) == (core == "exact")


def test_power_needs_two_methods(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plain.yaml").write_text(PLAIN)
    assert main(["plan", "./plain.yaml", "core=mini", "variant=sapo", "--power"]) == 2
    assert "plain: --power compares two methods" in capsys.readouterr().err


def test_power_of_a_claim_that_waits_for_another(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = "tested only after another is planned as if the other were supported"
    assert main(["plan", "position_order", "--power", "--deviation=8"]) == 0
    said = capsys.readouterr().out
    assert waiting in said
    Path("longer.yaml").write_text(TREND)
    assert main(["plan", "./longer.yaml", "--power"]) == 0
    assert waiting not in capsys.readouterr().out
    # On a terminal no line is longer than it.
    monkeypatch.setattr("cppo_lab.cli.training.width", lambda: 80)
    assert main(["plan", "position_order", "--power", "--deviation=8"]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, said.splitlines())) > max(map(len, narrow.splitlines())) <= 80
    assert " ".join(narrow.split()[-20:]) == " ".join(said.split()[-20:])


def test_power_of_hypotheses_about_the_error(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "exact", "--power", "--error-deviation=50", "--json"]) == 0
    found = {one["claim"]: one for one in json.loads(capsys.readouterr().out)["claims"]}
    assert len(found) == 11 and {one["deviation_is"] for one in found.values()} == {
        "percent, of the log ratio of errors"
    }
    first, slope = found["hypothesis cppo"], found["hypothesis cppo_horizon"]
    assert (first["seeds"], first["comparisons"], first["lead"]) == (40, 1, 0.81)
    shift = -2 * math.log(0.9) * math.sqrt(40) / 0.5
    assert first["power"] == pytest.approx(power_of_t(shift, 39), abs=0.005)
    shift = -2 * math.log(0.95) * math.sqrt(40) / 0.5
    assert slope["power"] == pytest.approx(power_of_t(shift, 39), abs=0.005)
    needed = first["seeds_needed"]
    more, fewer = (power_of_t(-2 * math.log(0.9) * math.sqrt(n) / 0.5, n - 1) for n in (needed, needed - 1))
    assert fewer < 0.8 < more + 0.005
    assert main(["plan", "exact", "seed=0", "--power", "--error-deviation=50", "--json"]) == 0
    alone = {one["claim"]: one for one in json.loads(capsys.readouterr().out)["claims"]}["hypothesis cppo"]
    assert (alone["seeds"], alone["power"], alone["seeds_needed"]) == (1, 0.0, needed)
    assert main(["plan", "exact", "seed=0,1,2,3", "--power"]) == 0
    said = capsys.readouterr().out
    assert (
        "30 %" in said
        and "twice the smallest that counts" in said
        and "scores" not in said.split("Claims")[0]
    )


def test_power_says_what_the_needed_seeds_cost(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sum over the runs that a claim compares, by the table of runs of `cppo plan`."""
    command = ["plan", "main", "core=verl", "model=qwen3_8b_base,qwen3_1_7b", "seed=0,1"]
    assert main([*command, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert main([*command, "--power", "--deviation=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    claims = {one["claim"]: one for one in found["claims"]}
    assert found["hours_are"] == "gpu"
    for name, compared in (("cppo_mean", ("cppo", "dppo")), ("cppo_best", {run["rule"] for run in runs})):
        of_a_seed = sum(run["gpu_hours"] for run in runs if run["rule"] in compared) / 2
        assert claims[name]["hours_needed"] == pytest.approx(
            of_a_seed * claims[name]["seeds_needed"], rel=1e-4
        )
    assert main([*command, "--power", "--deviation=2"]) == 0
    said = capsys.readouterr().out
    assert "GPU-hours for it: of all runs that the claim compares" in said
    assert f"{claims['cppo_mean']['hours_needed']:,.0f}\n" in said


ERRORS = """
title: Tiny
question: Does it show?
models: {exact: [exact_early, exact_late]}
variants: {loose: {rule: dppo, rule.delta: 0.012}, dppo: {rule: dppo}, cppo: {rule: cppo}}
axes: {rollout.max_response_length: [8, 16], seed: [0, 1, 2, 3]}
hypotheses:
  smaller:
    claim: It is smaller
    better: [dppo]
    than: [loose]
    outcome: error
    only: [exact_early]
    smallest: 10.0
    test_seeds: [0, 1, 2, 3]
"""


def test_the_cost_of_a_claim_about_the_error_is_that_of_its_own_process(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tiny.yaml").write_text(ERRORS)
    for length, seconds in ((8, 36.0), (16, 72.0)):
        for model in ("exact_early", "exact_late"):
            spec = compose(["core=exact", f"model={model}", f"rollout.max_response_length={length}"]).run
            folder = job(spec, workspace / "runs", tracking_uri()).folder
            folder.mkdir(parents=True)
            recorder = Recorder(spec, {schema.TAG_CODE_VERSION: "v"}, folder)
            for step in (1, 2, 3):
                recorder.log(step, {"perf/step_seconds": seconds})
            recorder.finish(FINISHED)
            sent(folder)
    assert main(["plan", "./tiny.yaml", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert main(["plan", "./tiny.yaml", "--power", "--error-deviation=30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [one] = found["claims"]
    # Two rules, two lengths, one process; not the third rule, nor the other process.
    of_a_seed = runs[0]["hours"] + 2 * runs[0]["hours"]
    assert found["hours_are"] == "machine"
    assert one["hours_needed"] == pytest.approx(2 * of_a_seed * one["seeds_needed"], rel=1e-3)
    assert main(["plan", "./tiny.yaml", "--power", "--error-deviation=30"]) == 0
    assert "  hours for it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["main", "--deviation=1"], "--deviation=1: only valid with --power"),
        (["main", "--power", "--deviation=0"], "must be above 0"),
        (["main", "--power", "--deviation=1,x"], "--deviation=x: must be a number of points"),
        (["main", "--power", "--effect=nan"], "--effect=nan: must be a number of points"),
        (["main", "--power", "--csv"], "use --json"),
        (["position_order", "seed=0", "--power"], "is planned: plan their variants with seed=140,141,"),
        (["exact", "seed=100", "--power"], "is planned: plan their variants with seed=0,1,2,"),
        (["exact", "variant=dppo", "--power"], "is planned: plan their variants with seed=0,1,2,"),
        (["exact", "--power", "--error-deviation=x"], "--error-deviation=x: must be a number of points"),
        (["main", "--error-deviation=30"], "--error-deviation=30: only valid with --power"),
        (
            ["main", "--power", "--correlation=1"],
            "--correlation=1: must be a number of at least 0 and below 1",
        ),
        (["main", "--power", "--correlation=much"], "--correlation=much: must be a number"),
        (["tune_cppo", "--power"], "tune_cppo is a search, which tests no claim"),
    ],
)
def test_power_names_the_remedy(
    workspace: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err
