"""The left half of Figure 1 is what the rules say: the shipped file is what `made_schematic` computes."""

import json
from pathlib import Path

import pytest

from tests.reports.made_schematic import masking_rules

SHIPPED = Path(__file__).parents[2] / "reports/schematic/masking_rules.json"


def test_the_shipped_file_is_up_to_date() -> None:
    shipped, now = json.loads(SHIPPED.read_text(encoding="utf-8")), masking_rules()
    assert shipped["moves_away"] == now["moves_away"]
    assert shipped["constants"] == now["constants"]
    for one, other in zip(shipped["rules"], now["rules"], strict=True):
        assert (one["rule"], one["masked_by"]) == (other["rule"], other["masked_by"])
        assert one["values"] == pytest.approx(other["values"], abs=2e-6)
        assert one["limit"] == pytest.approx(other["limit"], abs=2e-6)


def test_what_it_shows() -> None:
    rules = {entry["rule"]: entry for entry in masking_rules()["rules"]}
    masked = {
        name: {index for index, reason in enumerate(entry["masked_by"]) if reason}
        for name, entry in rules.items()
    }
    assert masked["dppo"] < masked["cppo"]  # the prefix takes more
    assert masked["grpo"] - masked["cppo"]  # rare tokens, whose divergence is small
    assert len(masked["trm_max"]) == len(rules["trm_max"]["values"])
    assert {"token", "prefix"} <= set(rules["cppo"]["masked_by"])
