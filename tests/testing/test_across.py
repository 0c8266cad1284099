"""`cppo_lab.testing.across`: what it finds in losses written as plain loops, with and without a planted fault."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cppo_lab.testing import across
from cppo_lab.testing.across import CASES, Batch, Outcome, Row, compare, difference, golden, matrix
from tests.conftest import ROOT

EVIDENCE = ROOT / "docs" / "evidence"


def clipped(
    batch: Batch,
    *,
    dual_clip: float = 1e30,
    cap: float = 1e30,
    divide: str = "tokens",
    temperature: float | None = None,
    padding: bool = False,
    scale: float = 1.0,
) -> Iterator[Tensor]:
    """GRPO's clipped loss, token by token. `divide`: by all `tokens` of the batch, or those of each `part`."""
    for part in batch.micro():
        total = torch.zeros(())
        for row in range(len(part.tokens)):
            for place in range(part.tokens.shape[1]):
                if not (padding or part.valid[row, place]):
                    continue
                logits = part.logits[row, place] / (temperature or part.temperature)
                logp = logits[part.tokens[row, place]] - logits.exp().sum().log()
                mu = logp.detach() if part.rollout_logp is None else part.rollout_logp[row, place]
                ratio, worth = (logp - mu).exp().clamp(max=cap), part.advantages[row]
                value = torch.min(ratio * worth, ratio.clamp(0.8, 1.28) * worth)
                total = total - (torch.max(value, dual_clip * worth) if worth < 0 else value)
        tokens = (part if divide == "part" else batch).valid.sum() * (batch.parts if divide == "part" else 1)
        yield scale * total / tokens


@pytest.mark.parametrize(
    "fault, setting",
    [
        ({}, {}),
        ({"dual_clip": 3.0}, {"dual_clip": 3.0}),
        ({"divide": "part"}, {"mean over": "each micro-batch"}),
        ({"temperature": 1.0}, {"temperature": 1.0}),
        ({"scale": 2.0, "dual_clip": 3.0}, {"dual_clip": 3.0, "scale": 2.0}),
    ],
)
def test_the_setting_that_makes_two_losses_equal_is_found(
    fault: dict[str, object], setting: dict[str, object]
) -> None:
    assert compare(clipped, fault, CASES["dapo"]) == (setting, {})


def test_what_no_setting_mends_is_described_where_it_shows() -> None:
    changes, differences = compare(clipped, {"cap": 1e8}, CASES["dapo"])
    assert changes == {}
    assert list(differences) == ["extreme"]
    assert (
        "1 of 20 tokens, first token 3 of response 2 with A = -0.8 and ratio 3.585e+09: gradient 0 in"
        in (differences["extreme"])
    )
    # Padding in the sum is found in every batch but the one that has none.
    _, differences = compare(clipped, {"padding": True}, CASES["dapo"])
    assert set(differences) == set(golden())
    assert set(differences.values()) == {"padding has a gradient"}


def test_a_suite_that_raises_says_so() -> None:
    def refuses(batch: Batch) -> Iterator[Tensor]:
        if batch.parts > 1:
            raise NotImplementedError("one; micro-batch")
        yield from clipped(batch)

    changes, differences = compare(refuses, {}, CASES["dapo"])
    assert changes == {}
    assert set(differences) == {name for name, batch in golden().items() if batch.parts > 1}
    assert set(differences.values()) == {"NotImplementedError, one, micro-batch"}


def test_the_words_for_a_difference() -> None:
    batch = golden()["near"]
    mine = across.ours(batch, CASES["dapo"], {})
    assert difference(mine, mine, batch) == ""
    assert difference(Outcome(mine.loss + 1, mine.gradient), mine, batch).startswith("gradient equal, loss ")
    assert "NaN" in difference(Outcome(float("nan"), mine.gradient), mine, batch)
    weights = torch.tensor([2.0, 3.0, 2.0, 3.0])[:, None, None]
    text = difference(Outcome(mine.loss, mine.gradient * weights), mine, batch)
    assert text == "the gradients of the responses are 2 and 3 times ours"


def test_a_table_keeps_the_rows_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.csv"
    rows = [
        Row("b", "1", "dapo", "", "scale=2.0", ""),
        Row("a", "1", "grpo", "x=1", "dual_clip=3.0", "near: no, yes; far: no"),
        Row("a", "1", "dapo", "", "", "near: all"),
    ]
    across.write_rows(path, rows)
    across.write_rows(path, [rows[2]._replace(differences="")])
    assert across.read_rows(path) == [rows[2]._replace(differences=""), rows[1], rows[0]]
    assert rows[1].verdict == "equal if dual_clip=3.0 except near, far"
    assert across.main(["--matrix", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| rule | a-1 | b-1 |",
        "| --- | --- | --- |",
        "| grpo | ≠ |  |",
        "| dapo | = | if |",
    ]


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["ver"], "verl"),
        (["verl", "--rule", "dapp"], "dapo"),
        (["--matrix", "no.csv"], "--csv has written"),
    ],
)
def test_mistakes_are_named(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        across.main(arguments)
    assert end.value.code == 2
    assert part in capsys.readouterr().err


@pytest.mark.verl
@pytest.mark.slow
def test_verls_own_losses_are_ours_under_the_recorded_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one suite that the environment of the tests has: what the table in docs/across.md says of it is so."""
    path = tmp_path / "table.csv"
    across.main(["verl", "--csv", str(path)])
    with (EVIDENCE / "across.csv").open(newline="") as file:
        recorded = [row for row in csv.DictReader(file) if row["suite"] == "verl"]
    assert [row._asdict() for row in across.read_rows(path)] == recorded


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "across.md").read_text()
    rows = across.read_rows(EVIDENCE / "across.csv")
    assert matrix(rows) in page
