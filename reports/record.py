"""`report.json`, the machine-readable record of a report: cells, runs, verdicts, and digests of figures and files.

It contains neither MLflow ids nor times, so that equal runs in different stores give equal records.
"""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import CellScore, RunScore, Stat
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.power import ReachedPower
from cppo_lab.analysis.statistics.verdicts import Verdict, reason, verdicts
from cppo_lab.reports.names import display_name
from cppo_lab.reports.registration import Standing, is_exploratory
from cppo_lab.reports.saved import FORMAT, RECORD
from cppo_lab.reports.verdict_view import testable_claims


@dataclass(frozen=True)
class About:
    """Report-level information; `kind` is sweep, study or search. `withdrawn`: see `registration.withdrawn`, a sentence
    for each sweep. The record omits the question, the links and these sentences.
    """

    kind: str
    name: str
    title: str
    question: str
    experiment: str
    core: str
    command: str
    beside: tuple[str, ...] = ()  # sweeps whose reports are in sibling folders of their names
    withdrawn: tuple[str, ...] = ()

    @property
    def overrides(self) -> str:
        """The overrides on the command line; empty for the whole sweep as in its file."""
        try:
            words = shlex.split(self.command)
        except ValueError:  # not a valid shell command
            return ""
        return shlex.join(word for word in words if "=" in word and not word.startswith("-"))


def record(
    about: About,
    boards: Mapping[str, Scoreboard],
    files: Mapping[str, bytes],
    claims: Mapping[Claim, Standing] = MappingProxyType({}),
    judged: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """The record of a report with these scored sweeps and files.

    `claims`: the sweeps' own hypotheses, each with its standing. `judged`: verdicts on hypotheses that are not about
    scores.
    """
    found = verdicts(boards, testable_claims(boards, about.kind == "study", tuple(claims)))
    content = {
        "format": FORMAT,
        **{key: getattr(about, key) for key in ("kind", "name", "title", "experiment", "core", "command")},
        "sweeps": [_sweep(name, board) for name, board in boards.items()],
        "verdicts": [*map(dict, judged), *(_verdict(one, claims.get(one.claim)) for one in found)],
        "figures": {
            name.removesuffix(".svg"): _drawing(data)
            for name, data in sorted(files.items())
            if name.endswith(".svg")
        },
        "files": {name: _digest(data) for name, data in sorted(files.items())},
    }
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _drawing(svg: bytes) -> str:
    """The digest of a drawing, without its metadata, which name the command."""
    return _digest(re.sub(rb"<metadata>.*?</metadata>", b"", svg, flags=re.DOTALL))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sweep(name: str, board: Scoreboard) -> dict[str, Any]:
    return {
        "name": name,
        "cells": [_cell(cell) for cell in board.cells.values()],
        "runs": [_run(run, board.data.versions) for run in board.runs],
    }


def _cell(cell: CellScore) -> dict[str, Any]:
    return {
        "model": cell.model,
        "variant": cell.variant,
        "state": cell.state.value,
        "provisional": cell.provisional,
        "expected": cell.expected,
        "score": _stat(cell.score),
        "components": {name: _stat(stat) for name, stat in cell.components.items()},
    }


def _stat(stat: Stat | None) -> dict[str, float | int | None] | None:
    return None if stat is None else {"mean": _number(stat.mean), "std": _number(stat.std), "n": stat.n}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _run(run: RunScore, versions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "key": f"{run.variant} on {run.model}, seed {'-' if run.seed is None else run.seed}",
        "run_id": run.run_id,
        "state": run.state.value,
        "step": run.choice.step,
        "score": _number(run.choice.score),
        "version": "" if run.mlflow_id is None else versions.get(run.mlflow_id, ""),
    }


def _verdict(verdict: Verdict, own: Standing | None) -> dict[str, Any]:
    found = None if verdict.deciding is None else verdict.deciding.difference
    estimate = None if found is None else found.estimate
    return {
        "claim": verdict.claim.key,
        "text": verdict.claim.text,
        "sweep": verdict.claim.sweep,
        "score": verdict.score.value,
        "outcome": verdict.outcome.value,
        "provisional": verdict.provisional,
        "reason": reason(verdict, display_name),
        "estimate": None if estimate is None else _number(estimate.value),
        "low": None if estimate is None else _number(estimate.low),
        "high": None if estimate is None else _number(estimate.high),
        "pairs": None if estimate is None else estimate.n,
        "exploratory": is_exploratory(verdict.outcome, verdict.after is not None, own),
        "p_adjusted": None if verdict.deciding is None else _number(verdict.deciding.p_adjusted),
        "unit": verdict.claim.unit,
        "power": None if verdict.power is None else power_values(verdict.power),
        "others": {score.value: outcome.value for score, outcome in sorted(verdict.others.items())},
    }


def power_values(found: ReachedPower) -> dict[str, float | int | str | None]:
    """The power of a verdict for JSON; `lead`: a fraction, or the log of a ratio of errors."""
    return {
        "lead": found.lead,
        "power": _number(found.power),
        "runs": found.runs,
        "runs_needed": found.needed.count,
        "unknown": found.needed.unknown,
    }


def listed_files(names: Sequence[str]) -> list[str]:
    """The files that a page links to, including the record."""
    return sorted([*names, RECORD])
