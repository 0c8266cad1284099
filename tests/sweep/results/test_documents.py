"""The examples of docs/notebook.md run on a store, and docs/notebook.ipynb gives the outputs that it shows."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest

import cppo_lab
from dev.notebook import NOTEBOOK, outputs
from tests.conftest import ROOT

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", Mock(side_effect=AssertionError("a connection was opened")))


def test_the_document_s_examples_run(in_trained: Path) -> None:
    names: dict[str, Any] = {}
    blocks = _BLOCK.findall((ROOT / "docs" / "notebook.md").read_text())
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)  # noqa: S102  the document is of this tree
    assert names["table"]["state"].tolist() == ["done"] * 2
    assert names["mean_of_seeds"].shape == (4, 7)
    assert names["wide"].shape == (11, 2)
    assert set(names["rewards"]["metric"]) == {"train/reward", "train/response_length"}
    share = names["share"]
    assert (
        names["hardest"].tolist()
        == sorted(share.groupby(names["outcomes"]["problem"].astype(str)).mean())[:3]
    )


def test_the_document_lists_every_column(in_trained: Path) -> None:
    text = (ROOT / "docs" / "notebook.md").read_text()
    study = cppo_lab.load("quickstart")
    for frame in (study.runs, study.history("train/reward"), study.outcomes()):
        for name in frame.columns:
            assert f"`{name}`" in text, name


def test_the_notebook_s_outputs_are_those_it_shows() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    shown = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(shown) > 4
    with pd.option_context("display.width", 80, "display.max_columns", 20):  # put back what the notebook sets
        assert outputs(notebook) == shown
