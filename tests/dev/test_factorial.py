"""The second analysis of factorials: effects that were put in come out, and falls are counted with their seeds."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dev import factorial

DOSES = list(itertools.product((0, 2, 8), (0.002, 0.2)))
FELL = {"dppo": {(0, 1), (8, 1)}, "cppo": {(8, 1), (8, 2), (8, 3), (8, 4)}}  # staleness, seed


def written(folder: Path) -> Path:
    """An export of two rules: CPPO is 2 points above DPPO, 6 more at staleness 8 with mismatch; its error is halved."""
    runs, rows = [], []
    for rule, (staleness, mismatch), seed in itertools.product(FELL, DOSES, range(5)):
        run = f"{rule}-{staleness}-{mismatch}-{seed}"
        variant = f"{rule} staleness={staleness} mismatch={mismatch}"
        doses = {"rollout.staleness": staleness, "model.mismatch": mismatch}
        runs.append({"run_id": run, "variant": variant, "model": "m", "seed": seed, "state": "done", **doses})
        lead = 0.0 if rule == "dppo" else 0.02 + 0.06 * (staleness == 8) * (mismatch == 0.2)
        noise = np.random.default_rng(seed).normal(0, 0.1)
        for step in (0, 1, 2):
            share = 0.5 if step == 2 and (staleness, seed) in FELL[rule] and mismatch == 0.2 else 1.0
            error = 0.01 * step * (1 if rule == "dppo" else -0.5)
            values = {"exact/return": share * (0.5 + noise) + lead, "exact/error": error}
            rows += [{"run_id": run, "step": step, "metric": name, "value": v} for name, v in values.items()]
    pd.DataFrame(runs).to_parquet(folder / "runs.parquet")
    pd.DataFrame(rows).to_parquet(folder / "history.parquet")
    return folder


def test_effects_and_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["factorial", str(written(tmp_path)), "--csv", str(tmp_path / "effects.csv")]
    )
    factorial.main()
    table = pd.read_csv(tmp_path / "effects.csv").set_index(["outcome", "method", "effect"]).sort_index()
    errors = table.loc["log error", "cppo"]
    assert errors.loc["mean", "value"] == pytest.approx(np.log(0.5), rel=1e-5)
    assert errors.loc["staleness x mismatch", "value"] == pytest.approx(0, abs=1e-9)
    assert set(table["seeds"]) == {5}
    collapsed, fell = capsys.readouterr().out.splitlines()[-2:]
    assert collapsed.startswith("m: of 30 cppo collapsed: 0, DPPO 0; Fisher p = 1; it alone 0")
    assert fell.startswith("m: of 30 cppo fell: 4, DPPO 2;") and fell.endswith(
        "it alone 3, DPPO alone 1, McNemar p = 0.625"
    )


def test_the_return_of_runs_that_do_not_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FELL, "dppo", set())
    monkeypatch.setitem(FELL, "cppo", set())
    monkeypatch.setattr(
        sys, "argv", ["factorial", str(written(tmp_path)), "--csv", str(tmp_path / "effects.csv")]
    )
    expected = {"mean": 3.0, "staleness": 3.0, "mismatch": 2.0, "staleness x mismatch": 6.0}
    assert returns(tmp_path) == pytest.approx(expected, abs=1e-4)
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    runs[(runs["rollout.staleness"] == 8) & (runs["model.mismatch"] == 0.2)].to_parquet(
        tmp_path / "runs.parquet"
    )
    assert returns(tmp_path) == pytest.approx({"mean": 8.0}, abs=1e-4)


def returns(folder: Path) -> dict[str, float]:
    factorial.main()
    table = (
        pd.read_csv(folder / "effects.csv").set_index(["outcome", "method", "effect"]).sort_index()["value"]
    )
    return dict(table["return", "cppo"])


def test_runs_of_single_updates_do_not_fall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = pd.read_parquet(written(tmp_path) / "history.parquet")
    matched = history[history["metric"] == "exact/error"].assign(metric="exact/matched", value=1.0)
    pd.concat([history, matched]).to_parquet(tmp_path / "history.parquet")
    monkeypatch.setattr(sys, "argv", ["factorial", str(tmp_path)])
    factorial.main()
    assert "fell" not in capsys.readouterr().out
