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
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import CellScore, RunScore, Stat
from cppo_lab.analysis.statistics.verdicts import reason
from cppo_lab.reports.names import display_name
from cppo_lab.reports.saved import FORMAT
from cppo_lab.reports.verdict_view import VerdictLine


@dataclass(frozen=True)
class About:
    """Report-level information; `kind` is sweep, study or search. `withdrawn`: see `claims.withdrawn`, a sentence
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

    @classmethod
    def of(cls, kind: str, request: Any, core: str, withdrawn: tuple[str, ...], **more: Any) -> "About":
        """Of the request of a sweep or a study."""
        copied = {key: getattr(request, key) for key in ("name", "title", "question", "experiment")}
        command = request.command or f"cppo report {request.name}"
        return cls(kind=kind, core=core, command=command, withdrawn=withdrawn, **copied, **more)

    @property
    def overrides(self) -> str:
        """The overrides on the command line; empty for the whole sweep as in its file."""
        try:
            words = shlex.split(self.command)
        except ValueError:  # not a valid shell command
            return ""
        before_options = takewhile(lambda word: not word.startswith("-"), words)
        return shlex.join(word for word in before_options if "=" in word)


def record(
    about: About,
    boards: Mapping[str, Scoreboard],
    files: Mapping[str, bytes],
    lines: Sequence[VerdictLine] = (),
    values: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """The record of a report with these scored sweeps, files and claims, and further values of its sections."""
    content = {
        "format": FORMAT,
        **{key: getattr(about, key) for key in ("kind", "name", "title", "experiment", "core", "command")},
        "sweeps": [
            {
                "name": name,
                "cells": [_cell(cell) for cell in board.cells.values()],
                "runs": [_run(run, board.data.versions) for run in board.runs],
            }
            for name, board in boards.items()
        ],
        "verdicts": [_verdict(line) for line in lines],
        **values,
        "figures": {
            # Without a drawing's metadata, which name the command.
            name.removesuffix(".svg"): _digest(re.sub(rb"(?s)<metadata>.*?</metadata>", b"", data))
            for name, data in sorted(files.items())
            if name.endswith(".svg")
        },
        "files": {name: _digest(data) for name, data in sorted(files.items())},
    }
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _cell(cell: CellScore) -> dict[str, Any]:
    return {
        **{key: getattr(cell, key) for key in ("model", "variant", "state", "provisional", "expected")},
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
        "version": versions.get(run.mlflow_id or "", ""),
    }


def _verdict(line: VerdictLine) -> dict[str, Any]:
    """Estimates of a claim about errors are ratios of errors, or factors per tenfold horizon; `lead` of its power is
    the log of such a ratio, else a fraction.
    """
    verdict, claim = line.verdict, line.verdict.claim
    deciding, power = verdict.deciding, verdict.power
    estimate = None if deciding is None else deciding.estimate
    value, low, high = (None, None, None) if estimate is None else claim.shown(estimate)
    return {
        "claim": claim.key,
        "text": claim.text,
        "sweep": claim.sweep,
        "score": verdict.score.value,
        "outcome": verdict.outcome.value,
        "provisional": verdict.provisional,
        "reason": reason(verdict, display_name) + line.beside,
        "estimate": _number(value),
        "low": _number(low),
        "high": _number(high),
        "pairs": None if estimate is None else estimate.n,
        "exploratory": line.exploratory,
        "p_adjusted": None if deciding is None else _number(deciding.p_adjusted),
        "unit": claim.unit,
        "power": power
        and {
            "lead": power.lead,
            "power": _number(power.power),
            "runs": power.runs,
            "runs_needed": power.needed,
            "unknown": power.unknown,
        },
        "others": dict(sorted(verdict.others.items())),
    }
