"""The GPU kit without a GPU: the whole of it on a bare Python, and what becomes of a part that fails."""

import json
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu_kit import __main__ as kit
from tests.conftest import ROOT, python
from tests.requirement import TRITON
from tests.waiting import CEILING_SECONDS

THERE = ["torch", "triton", "transformers", "numpy"]  # on the GPU machine, with what they need


def closure(names: list[str]) -> set[str]:
    """These packages and all that they need here, without extras."""
    packages: set[str] = set()
    while names:
        name = canonicalize_name(names.pop())
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another platform or Python
            continue
        if name not in packages:
            packages.add(name)
            required = [Requirement(need) for need in needs]
            names += [
                need.name for need in required if not need.marker or need.marker.evaluate({"extra": ""})
            ]
    return packages


def link(names: set[str], folder: Path) -> None:
    """Lay what these packages have installed in `folder`, by links."""
    for name in names:
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "bin", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / kit.FIGURES).read_text().splitlines()]


@pytest.mark.slow
def test_every_part_runs_with_what_a_gpu_machine_has_and_nothing_else(tmp_path: Path) -> None:
    TRITON.demand()
    out, bare = tmp_path / "out", tmp_path / "venv"
    venv.create(bare, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    link(closure([*THERE]), bare / "lib" / version / "site-packages")
    # Launches in this process set PYTHONSAFEPATH.
    unset = ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"OMP_NUM_THREADS": "1"}

    def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
        command, limit = [bare / "bin" / "python", *words], CEILING_SECONDS
        return subprocess.run(
            command, env=environment, cwd=ROOT, timeout=limit, capture_output=True, text=True
        )

    for absent in ("hydra", "mlflow", "verl"):
        assert f"No module named '{absent}'" in run("-c", f"import {absent}").stderr
    done = run("-m", "benchmarks.gpu_kit", "--device", "cpu", "--slack", "60", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr + (out / kit.LOG).read_text()
    [first, *rows] = lines(out)
    assert len(first["commit"]) == 40
    states = {row["part"]: row["state"] for row in rows if "state" in row}
    assert states == dict.fromkeys(kit.PARTS, "done") and list(states) == list(kit.PARTS)
    assert not [row for row in rows if row.get("met") is False or isinstance(row.get("value"), str)]
    values = {(row["part"], row["name"]): row["value"] for row in rows if "name" in row}
    assert {part for part, _ in values} == set(kit.PARTS)
    assert values["rules", "rules"] >= 30 and values["rules", "tokens masked otherwise than in float64"] == 0
    assert 0.05 < values["update", "masked"] < 0.95


def test_limits_are_six_minutes_and_a_part_that_fails_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sum(kit.PARTS.values()) <= 360
    limits = []

    def ended(words: list[str], limit: float, log: Path, *_: float, **options: object) -> int | None:
        """As if the part of this name had run."""
        limits.append(limit)
        with log.open("a") as output:
            output.write({"crashes": "so far\n"}.get(words[3], ""))
        if words[3] != "silent":
            kit.Record(words[3], tmp_path / kit.FIGURES).figure("half-way", 1.5, "s", at_most=1.0)
        return {"crashes": -6, "hangs": None, "silent": 1}.get(words[3], 0)

    monkeypatch.setattr(kit, "limited", ended)
    monkeypatch.setattr(kit, "PARTS", dict.fromkeys(("crashes", "silent", "hangs", "whole"), 30.0))
    assert kit.main(["--device", "cpu", "--out", str(tmp_path), "--slack", "2"]) == 1
    rows = lines(tmp_path)
    assert {row["part"]: (row["state"], row["why"]) for row in rows if "state" in row} == {
        "crashes": ("failed", "exit code -6: so far"),
        "silent": ("failed", "exit code 1: "),
        "hangs": ("over its limit", ""),
        "whole": ("done", ""),
    }
    assert [row["part"] for row in rows if row.get("met") is False] == ["crashes", "hangs", "whole"]
    assert limits == [60.0] * 4
    assert '"half-way", "value": 1.5' in capsys.readouterr().out
    monkeypatch.setattr(kit, "measure", here := Mock())
    kit.main(["--here", "--out", str(tmp_path)])
    assert here.call_args.args[:2] == ([*kit.PARTS], "cuda")


def test_what_is_no_number_meets_no_target(tmp_path: Path) -> None:
    kit.Record("a", tmp_path / "x").figure("gap", float("nan"), at_most=1.0)
    assert json.loads((tmp_path / "x").read_text()) == {
        "part": "a", "name": "gap", "value": "nan", "unit": "", "at_most": 1.0, "met": False,
    }  # fmt: skip


def test_no_gpu_is_said(tmp_path: Path) -> None:
    words = ("-m", "benchmarks.gpu_kit", "kernel", "--here", "--out", tmp_path)
    said = python(*words, cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, check=False)
    assert said.returncode == 2 and "sees no GPU" in said.stderr
