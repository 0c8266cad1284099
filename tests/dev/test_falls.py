"""Falls of runs are counted with their doses and seeds."""

import itertools
import sys
from pathlib import Path

import pandas as pd
import pytest

from dev import falls

DOSES = list(itertools.product((0, 2, 8), (0.002, 0.2)))
FELL = {"dppo": {(0, 1), (8, 1)}, "cppo": {(8, 1), (8, 2), (8, 3), (8, 4)}}  # staleness, seed


def written(folder: Path) -> Path:
    """An export of two rules whose runs end at half of their return where FELL says."""
    runs, rows = [], []
    for rule, (staleness, mismatch), seed in itertools.product(FELL, DOSES, range(5)):
        run = f"{rule}-{staleness}-{mismatch}-{seed}"
        variant = f"{rule} staleness={staleness} mismatch={mismatch}"
        doses = {"rollout.staleness": staleness, "model.mismatch": mismatch}
        runs.append({"run_id": run, "variant": variant, "model": "m", "seed": seed, "state": "done", **doses})
        for step in (0, 1, 2):
            share = 0.5 if step == 2 and (staleness, seed) in FELL[rule] and mismatch == 0.2 else 1.0
            rows.append({"run_id": run, "step": step, "metric": "exact/return", "value": share * 0.5})
    pd.DataFrame(runs).to_parquet(folder / "runs.parquet")
    pd.DataFrame(rows).to_parquet(folder / "history.parquet")
    return folder


def test_collapses_and_falls_are_counted_with_their_seeds_but_not_of_single_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["falls", str(written(tmp_path))])
    falls.main()
    collapsed, fell = capsys.readouterr().out.splitlines()
    assert collapsed.startswith("m: of 30 cppo collapsed: 0, DPPO 0; Fisher p = 1; it alone 0")
    assert fell.startswith("m: of 30 cppo fell: 4, DPPO 2;")
    assert fell.endswith("it alone 3, DPPO alone 1, McNemar p = 0.625")
    history = pd.read_parquet(tmp_path / "history.parquet")
    matched = history.assign(metric="exact/matched", value=1.0)
    pd.concat([history, matched]).to_parquet(tmp_path / "history.parquet")
    falls.main()
    assert "fell" not in capsys.readouterr().out
