"""Compares the losses of other suites with ours on golden batches: does their DPPO equal our DPPO?

    python -m cppo_lab.testing.across trl                     # 0: every rule is equal; 1: one differs; 2: cannot run
    python -m cppo_lab.testing.across trl --csv FILE.csv      # and puts its rows into FILE.csv
    python -m cppo_lab.testing.across --matrix FILE.csv       # the table rule x suite, in Markdown

A suite (`suites.py`) is a black box: it gets logits, tokens, log mu, advantages and masks, and gives the loss of each
micro-batch as its trainer sums them, through its own masking, padding and aggregation. We compare the sum and its
gradient in the logits. Where they differ, a grid of normalisations, clips and caps on our side is searched, fewest
changes first, for the setting that makes all batches equal; else the first token that differs is described.

Needs torch, numpy and this package, so that it runs in the environment of any suite.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cppo_lab.errors import UserError, message, one_line, unknown
from cppo_lab.maths.aggregation import MODES, aggregate
from cppo_lab.maths.divergence import binary
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import Tokens, row_counts
from cppo_lab.rules import rule_of

TOLERANCE = 1e-4  # relative, of the loss and of each token's gradient: the suites compute in float32


# Golden batches.


class Batch(NamedTuple):
    """What a trainer has of one optimiser step. B responses of up to T tokens, V tokens in the vocabulary.

    logits: [B, T, V] float32, before the temperature; the one with a gradient.
    tokens: [B, T] sampled ids. Like every other value, arbitrary at padding.
    rollout_logp: [B, T] log mu at the temperature, or None on policy: then mu is pi.
    advantages: [B], one for each response.
    valid: [B, T] bool, right-padded; a response may be empty (filtered out because it was cut off).
    temperature: of sampling.
    parts: micro-batches, of B / parts rows each.
    updates: optimiser steps that share one rollout; the others have as many tokens as this one.
    """

    logits: Tensor
    tokens: Tensor
    rollout_logp: Tensor | None
    advantages: Tensor
    valid: Tensor
    temperature: float = 1.0
    parts: int = 1
    updates: int = 1

    def micro(self) -> Iterator["Batch"]:
        """The micro-batches, with one part each."""
        rows = len(self.tokens) // self.parts
        for first in range(0, len(self.tokens), rows):
            cut = [None if value is None else value[first : first + rows] for value in self[:5]]
            yield Batch(*cut, self.temperature, 1, self.updates)  # type: ignore[arg-type]  # the fields in order

    def old_logp(self, logp: Tensor) -> Tensor:
        """[B, T] log mu: as recorded, or `logp` on policy."""
        return logp.detach() if self.rollout_logp is None else self.rollout_logp


@cache
def golden() -> Mapping[str, Batch]:
    """The batches by name: B = 4, T = 7, V = 8, from fixed seeds."""

    def batch(seed: int, drift: float, lengths: Sequence[int], **given: Any) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        valid = torch.arange(7) < torch.tensor(lengths)[:, None]
        logits = 1.5 * torch.randn(4, 7, 8, generator=generator)
        tokens = torch.randint(0, 8, (4, 7), generator=generator)
        logp = _logp(logits, tokens, given.get("temperature", 1.0))
        noise = drift * torch.randn(4, 7, generator=generator)
        advantages = torch.tensor([1.2, -0.8, 0.5, -1.5])
        return Batch(logits, tokens, (logp - noise).clamp_max(-0.01), advantages, valid, **given)

    apart = batch(3, 0.3, (7, 6, 3, 4))
    assert apart.rollout_logp is not None
    for row in (0, 1):  # log rho = 22, once for each sign of A
        apart.rollout_logp[row, 2] = _logp(apart.logits, apart.tokens, 1.0)[row, 2] - 22
    return {
        "near": batch(0, 0.3, (7, 5, 4, 2)),
        "far": batch(1, 2.0, (6, 7, 3, 5)),
        "padded": batch(2, 0.3, (1, 5, 0, 3)),
        "extreme": apart,
        "split": batch(4, 0.3, (7, 6, 2, 1), parts=2),
        "split, one empty": batch(5, 0.3, (7, 0, 2, 1), parts=2),
        "two updates": batch(6, 0.3, (7, 5, 4, 2), parts=2, updates=2),
        "temperature": batch(7, 0.3, (7, 5, 4, 2), temperature=0.6),
        "on policy": batch(8, 0.0, (7, 5, 4, 2), temperature=0.6)._replace(rollout_logp=None),
    }


def _logp(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    return (logits / temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


# Our side.


class Case(NamedTuple):
    """A rule of ours with constants, an aggregation, and the measure of its binary divergence if it needs one."""

    rule: str
    constants: Mapping[str, float]
    aggregation: str
    measure: str | None = None


_CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
_RESPONSE_CLIPS = {"clip_low": 0.1, "clip_high": 0.15}
_TOKENS, _RESPONSES = "token-mean", "seq-mean-token-mean"
CASES: Mapping[str, Case] = {
    "grpo": Case("grpo", _CLIPS, _RESPONSES),
    "dapo": Case("grpo", _CLIPS, _TOKENS),
    "dr_grpo": Case("grpo", _CLIPS, "seq-mean-token-sum-norm"),
    "gspo": Case("gspo", _RESPONSE_CLIPS, _RESPONSES),
    "luspo": Case("luspo", _RESPONSE_CLIPS, _RESPONSES),
    "gmpo": Case("geo_mean", {"log_clip_low": 0.4, "log_clip_high": 0.4}, _RESPONSES),
    "cispo": Case("cispo", {"clip_high": 4.0}, _TOKENS),
    "dppo_tv": Case("dppo", {"delta": 0.15}, _TOKENS, "tv"),
    "dppo_kl": Case("dppo", {"delta": 0.05}, _TOKENS, "kl"),
    "ipo": Case("ipo", {"delta": 0.15, "kl_tau": 0.001}, _TOKENS),
    "sapo": Case("sapo", {"tau_positive": 1.0, "tau_negative": 1.05}, _RESPONSES),
    "opsm": Case("opsm", _CLIPS | {"delta": 0.05}, _RESPONSES),
    "vaco": Case("vaco", {"delta": 0.2}, _TOKENS),
    "vespo": Case(
        "vespo",
        {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
        _TOKENS,
    ),
}
# What is changed on our side. `mean over`: what the loss is divided by; `whole` counts the responses with a token.
WHOLE, EACH, ALL = "whole batch", "each micro-batch", "all responses"
GRID: Mapping[str, tuple[Any, ...]] = {
    "dual_clip": (3.0,),
    "ratio_cap": (3.0, 5.0, 20.0, 1e4),
    "log_ratio_clamp": (10.0, 20.0),
    "mean over": (ALL, EACH),
    "aggregation": MODES,
    "temperature": (1.0,),
    "scale": (0.5, 2.0),
}


class Outcome(NamedTuple):
    """loss: of a batch. gradient: [B, T, V] of it in the logits."""

    loss: float
    gradient: Tensor


def ours(batch: Batch, case: Case, changes: Mapping[str, Any]) -> Outcome:
    """Our loss of a batch in float64, with changes from GRID."""
    mode, over = changes.get("aggregation", case.aggregation), changes.get("mean over", WHOLE)
    limits = {
        key: value for key, value in changes.items() if key in ("dual_clip", "ratio_cap", "log_ratio_clamp")
    }
    logits = batch.logits.detach().double().requires_grad_()
    total = torch.zeros(())
    whole = batch._replace(logits=logits)
    for part in whole.micro() if over == EACH else [whole]:
        logp = _logp(part.logits, part.tokens, changes.get("temperature", batch.temperature))
        mu = part.old_logp(logp).double()
        divergence = binary(logp.detach(), mu, case.measure) if case.measure else None
        advantages = part.advantages.double()[:, None].expand_as(logp)
        tokens = Tokens(logp, mu, advantages, part.valid, divergence)
        objective = get_rule(case.rule)(tokens, **case.constants, **limits).objective
        count = len(part.valid) if over == ALL and mode != _TOKENS else None
        total = total - aggregate(objective, part.valid, mode, denominator=count)
    total = total * changes.get("scale", 1.0) / (batch.parts if over == EACH else 1)
    total.backward()
    assert logits.grad is not None
    return Outcome(float(total), logits.grad)


def settings(case: Case) -> Iterator[dict[str, Any]]:
    """The changes of the grid that this case can have, fewest first; those without a change first."""
    takes = rule_of(case.rule).constants()
    axes = {
        key: values
        for key, values in GRID.items()
        if key in takes or key not in ("dual_clip", "ratio_cap", "log_ratio_clamp")
    }
    for size in range(4):
        for keys in itertools.combinations(axes, size):
            for values in itertools.product(*(axes[key] for key in keys)):
                yield dict(zip(keys, values, strict=True))


# The comparison.


def equal(theirs: Outcome, mine: Outcome) -> bool:
    """Whether the losses and all tokens' gradients agree within TOLERANCE."""
    scale = mine.gradient.abs().amax(-1, keepdim=True) + 1e-6 * min(1.0, float(mine.gradient.abs().amax()))
    near = (theirs.gradient - mine.gradient).abs() <= TOLERANCE * scale
    return bool(near.all()) and _near(theirs.loss, mine.loss)


def _near(theirs: float, mine: float) -> bool:
    return abs(theirs - mine) <= TOLERANCE * (abs(mine) + 0.1)


def difference(theirs: Outcome, mine: Outcome, batch: Batch) -> str:
    """What differs, in words: a factor, or the first token with another gradient."""
    if not (torch.isfinite(theirs.gradient).all() and theirs.loss - theirs.loss == 0):
        return "loss or gradient is NaN or infinite"
    # The gradient in the logit of the sampled token is a multiple of that in log pi(y), the same on both sides.
    there, here = (part.gradient.gather(-1, batch.tokens[..., None])[..., 0] for part in (theirs, mine))
    if bool((there[~batch.valid] != 0).any()):
        return "padding has a gradient"
    off = batch.valid & ((there - here).abs() > TOLERANCE * here.abs() + 1e-7)
    if not bool(off.any()):
        if _near(theirs.loss, mine.loss):
            return "gradients in the logits of tokens that were not sampled differ"
        return f"gradient equal; loss {theirs.loss:.4g}, here {mine.loss:.4g}"
    factors = [there[row][here[row] != 0] / here[row][here[row] != 0] for row in range(len(here))]
    constant = [
        float(each[0])
        for each in factors
        if len(each) and float(each.max() - each.min()) < 1e-3 * float(each[0])
    ]
    if not bool((off & (here == 0)).any()) and len(constant) == sum(len(each) > 0 for each in factors):
        parts = " and ".join(dict.fromkeys(f"{factor:.4g}" for factor in constant))
        return f"gradient of each response is {parts} times ours"
    row, token = off.nonzero()[0].tolist()
    old = batch.old_logp(_logp(batch.logits, batch.tokens, batch.temperature))
    ratio = float((_logp(batch.logits, batch.tokens, batch.temperature) - old)[row, token].exp())
    return (
        f"{int(off.sum())} of {int(row_counts(batch.valid).sum())} tokens, first response {row + 1}, token {token + 1} "
        f"(A {float(batch.advantages[row]):g}, ratio {ratio:.4g}): gradient {float(there[row, token]):.4g} in its "
        f"logit, here {float(here[row, token]):.4g}"
    )


class Row(NamedTuple):
    """A rule of a suite, compared. `differences`: what differs in which batch under the best `setting`."""

    suite: str
    version: str
    rule: str
    native: str
    verdict: str
    setting: str
    differences: str


def compare(losses: Any, native: Mapping[str, Any], case: Case) -> tuple[str, str, str]:
    """The verdict on a suite's loss function with its settings, our setting, and the differences."""
    outcomes: dict[str, Outcome | str] = {}
    for name, batch in golden().items():
        try:
            outcomes[name] = theirs(losses, batch, native)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001  whatever another suite raises is its answer
            outcomes[name] = f"raises {type(error).__name__}: {one_line(str(error))[:160]}"
    best: tuple[int, dict[str, Any], dict[str, str]] | None = None
    ran = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Outcome)}
    for changes in settings(case):
        mine = {name: ours(golden()[name], case, changes) for name in ran}
        wrong = [name for name in ran if not equal(ran[name], mine[name])]
        if best is None or len(wrong) < best[0]:
            texts = {name: difference(ran[name], mine[name], golden()[name]) for name in wrong}
            best = len(wrong), changes, texts
        if not wrong:
            break
    assert best is not None  # the first setting is that without a change
    raised = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, str)}
    setting = ", ".join(f"{key}={value}" for key, value in best[1].items())
    differs = "; ".join(f"{name}: {text}" for name, text in (best[2] | raised).items())
    verdict = "differs" if differs else "equal if" if setting else "equal"
    return verdict, setting, differs


def theirs(losses: Any, batch: Batch, native: Mapping[str, Any]) -> Outcome:
    """A suite's loss of a batch, summed over its micro-batches, and the gradient that this accumulates."""
    logits = batch.logits.clone().requires_grad_()
    total = 0.0
    for loss in losses(batch._replace(logits=logits), **native):
        if loss.requires_grad:  # else the suite has gone backward itself
            loss.backward()
        total += float(loss)
    return Outcome(total, torch.zeros_like(logits).double() if logits.grad is None else logits.grad.double())


# The table.


def matrix(rows: Iterable[Row]) -> list[str]:
    """The Markdown table rule x suite."""
    listed = list(rows)
    suites = list(dict.fromkeys(f"{row.suite} {row.version}" for row in listed))
    cells = {(row.rule, f"{row.suite} {row.version}"): _cell(row) for row in listed}
    lines = ["| rule | " + " | ".join(suites) + " |", "| --- " * (len(suites) + 1) + "|"]
    for rule in CASES:
        if any((rule, suite) in cells for suite in suites):
            lines.append(
                f"| {rule} | " + " | ".join(cells.get((rule, suite), "–") for suite in suites) + " |"
            )
    return lines


def _cell(row: Row) -> str:
    start = f"equal if {row.setting}" if row.setting else "equal"
    if not row.differences:
        return start
    batches = ", ".join(part.partition(":")[0] for part in row.differences.split("; "))
    return f"{start}, except: {batches}"


def read_rows(path: Path) -> list[Row]:
    """The rows of a table. Raises UserError if it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Row(**row) for row in csv.DictReader(file)]
    except (OSError, TypeError) as error:
        raise UserError(f"{path}: {error}: pass a table that --csv has written") from error


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Put the rows of one version of a suite into a table, in place of those that it has of it."""
    kept = read_rows(path) if path.exists() else []
    kept = [row for row in kept if row[:3] not in {new[:3] for new in rows}]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows(
            [Row._fields, *sorted([*kept, *rows], key=lambda row: (row.suite, row.version, row.rule))]
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare a suite, or print a table; 0 if no rule differs, 1 if one does."""
    from cppo_lab.testing.suites import SUITES

    parser = argparse.ArgumentParser(
        prog="python -m cppo_lab.testing.across",
        description="Compare the losses of another suite with ours, or print a table of comparisons.",
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument(
        "--rule", action="append", metavar="RULE", help="only this one; may be given several times"
    )
    parser.add_argument("--version", metavar="TEXT", help="of a suite that runs from a checkout: its commit")
    parser.add_argument("--csv", type=Path, metavar="FILE.csv", help="put the rows into this table")
    parser.add_argument("--matrix", type=Path, metavar="FILE.csv", help="print this table as rule x suite")
    options = parser.parse_args(arguments)
    try:
        if options.matrix:
            print("\n".join(matrix(read_rows(options.matrix))))
            return 0
        if options.suite not in SUITES:
            raise unknown("suite", options.suite or "", SUITES)
        suite = SUITES[options.suite]
        for rule in options.rule or ():
            if rule not in suite.native:
                raise unknown(f"rule of suite {options.suite!r}", rule, suite.native)
        losses = suite.open()
        version = options.version or metadata.version(suite.distribution)
    except (UserError, metadata.PackageNotFoundError) as error:
        parser.exit(2, f"cppo: error: {message(str(error))}\n")
    rows = []
    for rule, native in suite.native.items():
        if rule in (options.rule or suite.native):
            verdict = compare(losses, native, CASES[rule])
            text = " ".join(f"{key}={value}" for key, value in native.items())
            rows.append(Row(options.suite, version, rule, text, *verdict))
            print(
                f"{rule}: {_cell(rows[-1])}"
                + "".join(f"\n    {part}" for part in verdict[2].split("; ") if part)
            )
    if options.csv:
        write_rows(options.csv, rows)
    return int(any(row.verdict == "differs" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
