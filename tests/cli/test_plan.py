"""`cppo plan` and `cppo show`: states, cost and power of planned runs, for people, spreadsheets and programs."""

import csv
import io
import math
import re
import sys
from pathlib import Path
from statistics import pvariance
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from scipy.stats import nct, t

from cppo_lab import schema
from cppo_lab.runs.folder import write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import LayoutSpec, PathsSpec, RunSpec
from cppo_lab.spec.parse import parse, parse_run
from tests.conftest import FINISHED, TINY, TINY_LINE, Command
from tests.jobs import planned, run_of

SWEEP = f"quickstart {TINY_LINE}"
VERL = "quickstart core=verl"
LARGE = "main core=verl model=qwen3_8b_base variant=cppo"


@pytest.fixture(autouse=True)
def few_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What more of them say: tests/analysis/statistics/test_power.py."""
    monkeypatch.setattr("cppo_lab.analysis.statistics.power.STUDIES", 400)


def recorded(spec: RunSpec, seconds: float) -> Recorder:
    """A run of three steps that took so long."""
    folder = Path("runs").resolve() / spec.run_id
    recorder = Recorder(spec, {schema.TAG_CODE_VERSION: "v"}, folder)
    for step in (1, 2, 3):
        recorder.log(step, {"perf/step_seconds": seconds})
    return recorder


@pytest.fixture
def some_states(workspace: Path) -> dict[str, str]:
    """Of the quickstart's six: one done, one failed, one interrupted. Returns run id -> state."""
    ends = {
        "grpo": (schema.DONE, lambda recorder: recorder.finish(FINISHED)),
        "dppo": (schema.FAILED, lambda recorder: recorder.fail("ValueError: " + "a long reason " * 20, "")),
        "cppo": (schema.PARTIAL, lambda recorder: recorder.interrupt("terminated by SIGTERM")),
    }
    states = {}
    for rule, (state, end) in ends.items():
        spec = run_of(f"rule={rule} seed=0", TINY)
        end(recorded(spec, 3600.0))
        states[spec.run_id] = state
    return states


def test_states_for_programs_spreadsheets_and_people(
    some_states: dict[str, str], cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = cppo(f"plan {SWEEP} --json").answer
    assert (values["sweep"], values["core"]) == ("quickstart", "mini")
    states = {run["run_id"]: run["state"] for run in values["runs"]}
    assert states == {**dict.fromkeys(states, schema.MISSING), **some_states}
    assert values["totals"]["states"] == {"done": 1, "failed": 1, "partial": 1, "missing": 3}
    [cost] = values["totals"]["costs"]
    assert (cost["basis"], cost["hours"], cost["hours_left"]) == ("measured", 24.0, 20.0)
    [partial] = cppo(f"plan {SWEEP} --state partial --json").answer["runs"]
    assert (partial["step"], partial["variants"]) == (3, {"quickstart": "cppo"})
    assert (partial["hours"], partial["cost_basis"], partial["measured_runs"]) == (4.0, "measured", 3)
    assert partial["code_version"] == "v"
    rows = list(csv.DictReader(io.StringIO(cppo(f"plan {SWEEP} --csv").out)))
    assert rows[0].keys() == values["runs"][0].keys() and rows[0]["variants"] == "quickstart=grpo"
    assert {row["run_id"]: row["state"] for row in rows} == states
    out = cppo(f"plan {SWEEP} --state failed,partial").out
    assert [line.startswith(tuple(some_states)) for line in out.splitlines()].count(True) == 2
    assert "6 runs: 1 done, 1 failed, 1 partial, 3 missing" in out
    assert "2 of 6 runs shown (--state failed,partial)" in out
    assert "1 failed with an error: only `cppo retry` retrains" in cppo(f"launch {SWEEP} --dry-run").out
    # A reason is cut on a terminal only.
    whole = cppo(f"plan {SWEEP}").out.splitlines()
    assert max(map(len, whole)) > 250
    monkeypatch.setattr("cppo_lab.cli.training.width", lambda: 80)
    table = cppo(f"plan {SWEEP}").out.splitlines()[2:9]
    assert table == [line if len(line) <= 80 else f"{line[:79]}…" for line in whole[2:9]]


def test_a_study_says_how_many_places_its_runs_fill(cppo: Command) -> None:
    assert "12 runs in 18 places: 12 missing" in cppo("plan study model=mini_small_base seed=0").out


def power_of_t(shift: float, degrees: int) -> float:
    """The power of the one-sided test at 2.5 % if the true value is `shift` standard errors."""
    return float(nct.sf(t.ppf(0.975, degrees), degrees, shift))


def powers(cppo: Command, line: str) -> dict[str, dict[str, Any]]:
    return {claim["claim"]: claim for claim in cppo(f"plan {line} --power --json").answer["claims"]}


def test_power_of_the_papers_claims(cppo: Command) -> None:
    answer = cppo("plan main seed=0,1,2 --power --deviation=1,2 --json").answer
    claims = {(claim["claim"], claim["deviation"]): claim for claim in answer["claims"]}
    assert (answer["sweep"], answer["core"], answer["correlation"]) == ("main", "mini", 0.0)
    assert {claim["lead"] for claim in answer["claims"]} == {"paper"}
    # With the paper's own effects three seeds decide the primary claim, and nothing like that decides every cell.
    assert claims["cppo_mean", 1.0]["power"] > 0.95 > 0.05 > claims["cppo_best", 1.0]["power"]
    # The leads of Table 1 are wider than those of the final means: 3.34 against 2.95 points.
    wider = powers(cppo, "main seed=0,1,2 --deviation=2 --effect=table1")["cppo_mean"]["power"]
    assert claims["cppo_mean", 2.0]["power"] + 0.04 < wider < 0.95
    assert claims["cppo_best", 2.0]["seeds_needed"] > claims["cppo_best", 1.0]["seeds_needed"] > 10
    said = cppo("plan drift_strong --power --effect=5 --deviation=2").out
    assert "if the truth is a lead of 5 points" in said
    assert "a lead of 1 point (none" in cppo("plan drift_strong --power --effect=1 --deviation=2").out


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
WAITING = "tested only after another is planned as if the other were supported"


def test_power_of_a_sweeps_own_hypotheses(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("longer.yaml")
    file.write_text(TREND)
    above, grows = powers(cppo, "longer.yaml --deviation=2").values()
    assert above["seeds"] == grows["seeds"] == 4  # of six, two are not for the test
    # Differences on a model have a standard error of sqrt(2) points and 3 degrees of freedom. Their mean over three
    # models, 4 points, has one of sqrt(2 / 3) points and 3 to 9 degrees of freedom.
    low, high = power_of_t(4 * 1.5**0.5, 3), power_of_t(4 * 1.5**0.5, 9)
    assert low < above["power"] < high + 0.01
    models = ("mini_base", "mini_large_base", "mini_long")
    lengths = [run_of(f"model={model}").rollout.max_response_length for model in models]
    shift = 4 * (3 * pvariance(map(math.log2, lengths)) / 2) ** 0.5  # 4 points for each doubling
    # The residuals of three models leave one degree of freedom.
    assert 0.025 < grows["power"] < power_of_t(shift, 1) + 0.02 < power_of_t(shift, 3)
    assert powers(cppo, "longer.yaml --deviation=2 --effect=0.001")["hypothesis above"]["power"] < 0.05
    # With a correlation of 0.75 differences have half the deviation, as if the lead were twice as large.
    together = powers(cppo, "longer.yaml --deviation=2 --effect=2 --correlation=0.75")["hypothesis above"]
    assert low < together["power"] < high + 0.01
    assert together["lead"] == 2.0
    # The number of seeds is that of the variants that are compared.
    more = TREND.replace("variants: {", "variants: {other: {rule: grpo}, ")
    file.write_text(more + "exclude: [{variant: other, seed: 5}]\n")
    said = cppo("plan longer.yaml --power").out
    assert "a lead of twice the smallest advantage that counts" in said and WAITING not in said
    assert re.search(r"It is above +1 +4 +5 ", said) and re.search(r"It is above +1 +4 +10 ", said)
    # No lead grows with the length where there is one length.
    assert powers(cppo, "longer.yaml --deviation=2 model=mini_long").keys() == {"hypothesis above"}
    file.write_text("\n".join(line for line in TREND.splitlines() if "It is above" not in line))
    error = cppo("plan longer.yaml --power model=mini_long", code=2).err
    assert "seed=2,3,4,5, and a trend on models of different response lengths" in error
    # One that waits for another; on a terminal no line is longer than it.
    said = cppo("plan position_order --power --deviation=8").out
    assert WAITING in said
    monkeypatch.setattr("cppo_lab.cli.training.width", lambda: 80)
    narrow = cppo("plan position_order --power --deviation=8").out
    assert max(map(len, said.splitlines())) > max(map(len, narrow.splitlines())) <= 80
    assert " ".join(narrow.split()[-20:]) == " ".join(said.split()[-20:])
    file.write_text(TREND.replace("It is above", "' '"))
    assert cppo("plan longer.yaml --power").out.count(" 4 ") > 2  # a claim of blanks has its line


SEQUENTIAL = """
title: T
question: Q?
models: [mini_base]
variants: {a: {rule: cppo}, b: {rule: dppo}, c: {rule: grpo}}
axes: {seed: [1, 2, 3, 4, 5, 6]}
hypotheses:
  best: {claim: Best, better: [a], than: [b, c], test_seeds: [1, 2, 3, 4, 5, 6], sequential: true}
  equal: {claim: Equal, better: [a], than: [b], test_seeds: [1, 2, 3, 4, 5, 6], within: 1.0}
"""


def test_power_of_a_hypothesis_that_is_looked_at_after_each_seed_and_of_one_on_equality(
    cppo: Command,
) -> None:
    Path("mine.yaml").write_text(SEQUENTIAL)
    assert "A sequential claim is judged after each seed until" in cppo("plan mine.yaml --power").out
    assert powers(cppo, "mine.yaml --deviation=1")["hypothesis equal"]["lead"] == 0.0


PLAIN = """
title: Plain
question: Which is better?
models: {exact: [exact_early], mini: [mini_quick]}
variants: {grpo: {rule: grpo}, dppo: {rule: dppo}, sapo: {rule: sapo}}
axes: {seed: [0, 1, 2, 3]}
"""


@pytest.mark.parametrize("core, degrees, most", [("exact", 1, 0.82), ("mini", 2, 0.86)])
def test_power_without_claims_is_what_the_seeds_of_two_methods_show(
    cppo: Command, workspace: Path, core: str, degrees: int, most: float
) -> None:
    """The exact core's runs are compared seed by seed (n - 1 degrees of freedom), those of mini by Welch (fewer than
    2 n - 2).
    """
    Path("plain.yaml").write_text(PLAIN)
    asked = f"plan plain.yaml core={core} variant=grpo,dppo --power"

    def differences(more: str) -> list[dict[str, Any]]:
        answer = cppo(f"{asked} --json {more}").answer
        assert answer["claims"] == []
        rows: list[dict[str, Any]] = answer["differences"]
        return rows

    assumed = differences("--deviation=2,4")
    assert [(row["seeds"], row["deviation"], row["measured"]) for row in assumed] == [(4, 2, 0), (4, 4, 0)]
    for row in assumed:
        for n, points in row["differences"].items():
            shift = points / (row["deviation"] * math.sqrt(2 / int(n)))
            assert 0.78 < power_of_t(shift, degrees * (int(n) - 1)) < most
    [alone] = differences("--deviation=2 seed=0")
    assert alone["differences"]["1"] is None and alone["differences"]["3"] > 0
    # A lead is asked for: about as powerful as the same difference shown above.
    [row] = differences(f"--deviation=2 --effect={1.0001 * assumed[0]['differences']['4']}")
    assert (row["power"], row["seeds_needed"]) == (pytest.approx(0.8, abs=1e-3), 4)
    # Finished runs have a scatter of their own.
    rng = np.random.default_rng(0)
    finals = {variant: rng.normal(0.5, 0.1, 4) for variant in ("grpo", "dppo")}
    for run in planned(["plain.yaml", *asked.split()[2:4]]).runs:
        (folder := workspace / "runs" / run.run_id).mkdir(parents=True)
        write_status(folder, {"status": "done", "final_mean": float(finals[run.variant][run.spec.seed])})
    [measured] = differences("")
    by_seed = np.std(finals["grpo"] - finals["dppo"], ddof=1) / math.sqrt(2)
    pooled = math.sqrt(np.mean([np.var(values, ddof=1) for values in finals.values()]))
    expected = 100 * (by_seed if core == "exact" else pooled)
    assert measured["deviation"] == pytest.approx(expected) and measured["measured"] == 8
    said = " ".join(cppo(asked).out.split())
    assert "8 runs" in said and ("seed by seed" in said) == (core == "exact")


ERRORS = """
title: Tiny
question: Does it show?
models: {exact: [exact_early, exact_late]}
variants: {loose: {rule: dppo, rule.delta: 0.012}, dppo: {rule: dppo}, cppo: {rule: cppo}}
axes: {rollout.max_response_length: [8, 16], seed: &seeds [0, 1, 2, 3]}
hypotheses:
  smaller:
    claim: It is smaller
    better: [dppo]
    than: [loose]
    outcome: error
    only: [exact_early]
    smallest: 10.0
    test_seeds: *seeds
"""
GROWS = """
  grows:
    claim: It grows
    better: [cppo]
    than: [dppo]
    outcome: error_slope
    models: mean
    smallest: 5.0
    test_seeds: *seeds
"""


def test_power_of_hypotheses_about_the_error(cppo: Command) -> None:
    Path("tiny.yaml").write_text(ERRORS.replace("[0, 1, 2, 3]", f"{[*range(40)]}") + GROWS)
    claims = powers(cppo, "tiny.yaml --error-deviation=50")
    assert {claim["deviation_is"] for claim in claims.values()} == {"percent, of the log ratio of errors"}
    first = claims["hypothesis smaller"]
    assert (first["seeds"], first["comparisons"], first["lead"]) == (40, 1, 0.81)
    for name, smallest in (("smaller", 0.9), ("grows", 0.95)):
        shift = -2 * math.log(smallest) * math.sqrt(40) / 0.5
        assert claims[f"hypothesis {name}"]["power"] == pytest.approx(power_of_t(shift, 39), abs=0.005)
    needed = first["seeds_needed"]
    more, fewer = (power_of_t(-2 * math.log(0.9) * math.sqrt(n) / 0.5, n - 1) for n in (needed, needed - 1))
    assert fewer < 0.8 < more + 0.005
    alone = powers(cppo, "tiny.yaml seed=0 --error-deviation=50")["hypothesis smaller"]
    assert (alone["seeds"], alone["power"], alone["seeds_needed"]) == (1, 0.0, needed)
    said = cppo("plan tiny.yaml seed=0,1,2,3 --power").out
    assert "30 %" in said and "twice the smallest that counts" in said
    assert "scores" not in said.split("Claims")[0]


def test_power_says_what_the_needed_seeds_cost(cppo: Command) -> None:
    """The sum over the runs that a claim compares, by the table of runs of `cppo plan`."""
    command = "plan main core=verl model=qwen3_8b_base,qwen3_1_7b seed=0,1"
    runs = cppo(f"{command} --json").answer["runs"]
    answer = cppo(f"{command} --power --deviation=2 --json").answer
    claims = {claim["claim"]: claim for claim in answer["claims"]}
    assert answer["hours_are"] == "gpu"
    for name, compared in (("cppo_mean", ("cppo", "dppo")), ("cppo_best", {run["rule"] for run in runs})):
        of_a_seed = sum(run["gpu_hours"] for run in runs if run["rule"] in compared) / 2
        expected = of_a_seed * claims[name]["seeds_needed"]
        assert claims[name]["hours_needed"] == pytest.approx(expected, rel=1e-4)
    said = cppo(f"{command} --power --deviation=2").out
    assert "GPU-hours for it: of all runs that the claim compares" in said
    assert f"{claims['cppo_mean']['hours_needed']:,.0f}\n" in said


def test_the_cost_of_a_claim_about_the_error_is_that_of_its_own_process(cppo: Command) -> None:
    Path("tiny.yaml").write_text(ERRORS)
    for length, seconds in ((8, 36.0), (16, 72.0)):
        for model in ("exact_early", "exact_late"):
            spec = run_of(f"core=exact model={model} rollout.max_response_length={length}")
            recorded(spec, seconds).finish(FINISHED)
    runs = cppo("plan tiny.yaml --json").answer["runs"]
    answer = cppo("plan tiny.yaml --power --error-deviation=30 --json").answer
    [claim], unit = answer["claims"], answer["hours_are"]
    # Two rules, two lengths, one process; not the third rule, nor the other process.
    of_a_seed = runs[0]["hours"] + 2 * runs[0]["hours"]
    assert unit == "machine"
    assert claim["hours_needed"] == pytest.approx(2 * of_a_seed * claim["seeds_needed"], rel=1e-3)
    said = cppo("plan tiny.yaml --power --error-deviation=30").out
    assert "  hours for it" in said and "counts (none for an equivalence) and the log ratio" in said


def shown(cppo: Command, line: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(cppo(f"show {line}").out))


def test_what_is_shown_is_the_run(cppo: Command, workspace: Path) -> None:
    """Read back, it has the same id: nothing that decides the numbers is left out."""
    for line in (VERL, SWEEP):
        documents = shown(cppo, line)
        assert len(documents) == 6
        for document in documents:
            assert parse_run(document["run"], "shown").run_id == document["run_id"]
    run_id = documents[3]["run_id"]  # by its beginning; overrides may stand after options
    for words in (f"{SWEEP} --run {run_id[:9]}", f"quickstart --run {run_id} {TINY_LINE}"):
        assert [document["run_id"] for document in shown(cppo, words)] == [run_id]
    cppo(f"show {VERL} --run ''")  # every id begins with nothing
    assert list(workspace.iterdir()) == []


def test_a_run_of_the_verl_core_is_shown_with_its_place_and_cost(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    [document] = shown(cppo, f"{LARGE} paths.data=/data")
    assert list(document) == ["run_id", "sweeps", "run", "layout", "paths", "estimate"]
    assert list(document["run"])[:4] == ["core", "seed", "model", "data"]
    assert parse(LayoutSpec, document["layout"], "shown").devices == 16
    assert parse(PathsSpec, document["paths"], "shown").data == "/data"
    assert document["estimate"]["memory"].startswith("fits in 80 GB")
    assert document["estimate"]["good_to_a_factor_of"] == 2
    tiny = "training.t_stop=1 validation.every=1 rollout.max_response_length=256 layout=workstation"
    [short] = shown(cppo, f"{LARGE.replace('8b_base', '1_7b')} {tiny}")
    assert 0 < short["estimate"]["gpu_hours"] < 1
    assert cppo(f"show {LARGE}").out.startswith("# cppo / qwen3_8b_base / seed 0\nrun_id: ")
    [small] = shown(cppo, f"{VERL} variant=cppo seed=0")
    assert "estimate" not in small
    # The composer of verl's configuration is called with the run, its layout and the paths.
    plain_config = Mock(return_value={"trainer": 1})
    monkeypatch.setitem(sys.modules, "cppo_lab.cores.verl.config", SimpleNamespace(plain_config=plain_config))
    [document] = shown(cppo, f"{LARGE} --verl paths.data=/d")
    run, layout, paths, runs = plain_config.call_args.args
    assert (document["verl"], run.run_id) == ({"trainer": 1}, document["run_id"])
    assert (layout.nodes, paths.data, runs) == (2, "/d", Path("runs").resolve())


def test_the_plan_of_the_paper_with_its_cost(cppo: Command) -> None:
    lines = cppo("plan main core=verl").out.replace(",", "").splitlines()
    assert " ".join(lines[2].split()) == "run id variant model seed layout GPU-hours state"
    rows = [line.split() for line in lines[3:31]]
    assert {len(row) for row in rows} == {9}  # hours are `160 to 620`
    assert [row[4] for row in rows] == ["one_node"] * 14 + ["two_nodes"] * 7 + ["four_nodes_megatron"] * 7
    summary = next(line for line in lines if line.startswith("Estimated cost: ")).split()
    low, high = int(summary[2]), int(summary[4])
    assert low == pytest.approx(sum(int(row[5]) for row in rows), rel=0.05)  # each is rounded
    assert (high, summary[5:9]) == (pytest.approx(4 * low, rel=0.05), ["GPU-hours", "for", "28", "runs;"])
    assert "28 runs: 28 missing" in lines
    assert sum(": fits in 80 GB (peak " in line for line in lines) == 4
    # Float32 weights of 21 dense models, bfloat16 of 7 mixtures of experts; of these two checkpoints of 14 bytes.
    assert "Disk: 753 GB of best weights stay of 28 runs; while it trains a run takes up to 916 GB." in lines
    small = cppo(f"plan {LARGE} layout=one_node layout.tokens_per_device=131072").out
    assert "does not fit  missing" in small and "Estimated cost: 0 GPU-hours" in small
    assert "qwen3_8b_base on one_node: does not fit in 80 GB (peak " in small
    cpu = cppo(f"plan {VERL}").out  # without GPUs runs cost nothing
    assert "Estimated cost" not in cpu and "Disk: " not in cpu
    assert all(line.split()[4:6] == ["cpu", "-"] for line in cpu.splitlines()[3:9])
    assert "GPU-hours" not in cppo(f"plan {SWEEP}").out
