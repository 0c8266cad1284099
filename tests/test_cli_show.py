"""`cppo show` and the cost columns of `cppo plan`."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from cppo_lab.cli import main
from cppo_lab.spec import LayoutSpec, PathsSpec
from cppo_lab.spec.parse import parse, parse_run
from tests.conftest import TINY

TINY_VERL = ["quickstart", "core=verl"]
ONE = ["main", "core=verl", "model=qwen3_8b_base", "variant=cppo"]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["show", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_what_is_shown_is_the_run(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read back, it has the same id: nothing that decides the numbers is left out."""
    for arguments in (TINY_VERL, ["quickstart", *TINY]):
        documents = shown(capsys, *arguments)
        assert len(documents) == 6
        for document in documents:
            assert parse_run(document["run"], "shown").run_id == document["run_id"]
    assert list(workspace.iterdir()) == []


def test_a_run_of_the_verl_core_is_shown_with_its_place_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    [document] = shown(capsys, *ONE, "paths.data=/data")
    assert list(document) == ["run_id", "sweeps", "run", "layout", "paths", "estimate"]
    assert list(document["run"])[:4] == ["core", "seed", "model", "data"]
    assert parse(LayoutSpec, document["layout"], "shown").devices == 16
    assert parse(PathsSpec, document["paths"], "shown").data == "/data"
    assert document["estimate"]["memory"].startswith("fits in 80 GB")
    assert document["estimate"]["good_to_a_factor_of"] == 2
    [small] = shown(capsys, *TINY_VERL, "variant=cppo", "seed=0")
    assert "estimate" not in small


def test_the_text_does_not_change_between_calls(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        assert main(["show", *ONE]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("# cppo / qwen3_8b_base / seed 0\nrun_id: ")


def test_one_run_by_the_beginning_of_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [document["run_id"] for document in shown(capsys, *TINY_VERL)]
    [document] = shown(capsys, *TINY_VERL, "--run", ids[3][:9])
    assert document["run_id"] == ids[3]


def test_overrides_may_stand_after_options(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [document["run_id"] for document in shown(capsys, *TINY_VERL)]
    [document] = shown(capsys, "quickstart", "--run", ids[0], "core=verl")
    assert document["run_id"] == ids[0]
    for arguments in (["show", "quickstart", "--rum", "x"], ["ui", "delta=1"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "unrecognized arguments: " in capsys.readouterr().err


def test_verls_configuration_beside_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The composer of verl's configuration is called with the run, its layout and the paths."""
    stand_in = types.ModuleType("cppo_lab.cores.verl.config")

    def plain_config(run: Any, layout: Any, paths: Any, runs: Any) -> dict[str, Any]:
        return {"trainer": {"nnodes": layout.nodes, "seed": run.seed, "data": paths.data}}

    stand_in.plain_config = plain_config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cppo_lab.cores.verl", types.ModuleType("cppo_lab.cores.verl"))
    monkeypatch.setitem(sys.modules, "cppo_lab.cores.verl.config", stand_in)
    [document] = shown(capsys, *ONE, "--verl", "paths.data=/d")
    assert document["verl"] == {"trainer": {"nnodes": 2, "seed": 0, "data": "/d"}}


def test_every_id_begins_with_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *TINY_VERL, "--run", ""]) == 0
    assert capsys.readouterr().err == ""


def test_the_plan_of_the_paper_with_its_cost(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "main", "core=verl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["run", "id", "variant", "model", "seed", "layout", "GPU-hours", "state"]
    rows = [line.split() for line in lines[3:31]]
    assert {len(row) for row in rows} == {7}
    assert [row[4] for row in rows] == ["one_node"] * 14 + ["two_nodes"] * 7 + ["four_nodes_megatron"] * 7
    total = sum(int(row[5]) for row in rows)
    summary = next(line for line in lines if line.startswith("Estimated cost: "))
    assert abs(int(summary.split()[2]) - total) <= 28  # each is rounded
    assert "for 28 runs, good to a factor of 2 either way" in summary
    assert "28 runs: 28 missing" in lines
    assert sum(": fits in 80 GB (peak " in line for line in lines) == 4
    assert list(workspace.iterdir()) == []


def test_a_layout_that_is_too_small_is_named(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *ONE, "layout=one_node", "layout.tokens_per_device=65536"]) == 0
    text = capsys.readouterr().out
    assert "does not fit  missing" in text
    assert "Estimated cost: 0 GPU-hours" in text
    assert "qwen3_8b_base on one_node: does not fit in 80 GB (peak " in text


def test_runs_without_gpus_cost_nothing(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *TINY_VERL]) == 0
    text = capsys.readouterr().out
    assert "Estimated cost" not in text
    assert all(line.split()[4:6] == ["cpu", "-"] for line in text.splitlines()[3:9])
    assert main(["plan", "quickstart", *TINY]) == 0
    assert "GPU-hours" not in capsys.readouterr().out
