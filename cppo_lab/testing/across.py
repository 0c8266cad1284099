"""Compares the losses of other suites with ours on golden batches: does their DPPO equal our DPPO?

    python -m cppo_lab.testing.across trl                     # 0: every rule is equal; 1: one differs; 2: cannot run
    python -m cppo_lab.testing.across trl --csv FILE.csv      # and puts its rows into FILE.csv
    python -m cppo_lab.testing.across --matrix FILE.csv       # the table rule x suite, in Markdown

A suite (`suites.py`) is a black box: it gets logits, tokens, log mu, advantages and masks, and gives the loss of each
micro-batch as its trainer sums them, through its own masking, padding and aggregation. We compare the sum and its
gradient in the logits. Where they differ, a grid of normalisations, clips and caps on our side is searched, fewest
changes first, for one that makes all batches equal; else the first token that differs is described. `suites.json` has
our rules with their constants (`cases`), and what a suite calls them.

Needs torch, numpy and this package, so that it runs in the environment of any suite.
"""

import argparse
import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import rule_of
from cppo_lab.testing.suites import SUITES, suite

TOLERANCE = 1e-4  # relative, of the loss and of each token's gradient: the suites compute in float32
FLOOR = 1e-6  # of gradients, of which a batch's largest is about 0.1: less is rounding


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

    def micro(self) -> "Iterator[Batch]":
        """The micro-batches, with one part each."""
        rows = len(self.tokens) // self.parts
        for first in range(0, len(self.tokens), rows):
            values: list[Any] = [part if part is None else part[first : first + rows] for part in self[:5]]
            yield self._replace(**dict(zip(self._fields, values, strict=False)), parts=1)

    def logp(self, temperature: float | None = None) -> Tensor:
        """[B, T] log pi of the tokens, at the batch's temperature or another one."""
        logp = (self.logits / (temperature or self.temperature)).log_softmax(-1)
        return logp.gather(-1, self.tokens[..., None])[..., 0]

    def old_logp(self, logp: Tensor) -> Tensor:
        """[B, T] log mu: as recorded, or `logp` on policy."""
        return logp.detach() if self.rollout_logp is None else self.rollout_logp

    @property
    def token_advantages(self) -> Tensor:
        """[B, T]: the response's at each of its tokens."""
        return self.advantages[:, None].expand_as(self.tokens)


@cache
def golden() -> Mapping[str, Batch]:
    """The batches by name: B = 4, T = 7, V = 8, from fixed seeds."""

    def batch(seed: int, drift: float, lengths: Sequence[int], **given: Any) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        logits, tokens = (
            1.5 * torch.randn(4, 7, 8, generator=generator),
            torch.arange(28).reshape(4, 7) * 5 % 8,
        )
        valid = torch.arange(7) < torch.tensor(lengths)[:, None]
        new = Batch(logits, tokens, None, torch.tensor([1.2, -0.8, 0.5, -1.5]), valid, **given)
        noise = drift * torch.randn(4, 7, generator=generator)
        return new._replace(rollout_logp=(new.logp() - noise).clamp_max(-0.01))

    extreme = batch(3, 0.3, (7, 6, 3, 4))
    assert extreme.rollout_logp is not None
    extreme.rollout_logp[:2, 2] = extreme.logp()[:2, 2] - 22  # log rho = 22, once for each sign of A
    return {
        "near": batch(0, 0.3, (7, 5, 4, 2)),
        "far": batch(1, 2.0, (6, 7, 3, 5)),
        "empty": batch(2, 0.3, (1, 5, 0, 3)),
        "extreme": extreme,
        "split": batch(4, 0.3, (7, 6, 2, 1), parts=2),
        "split_empty": batch(5, 0.3, (7, 0, 2, 1), parts=2),
        "updates": batch(6, 0.3, (7, 5, 4, 2), parts=2, updates=2),
        "temperature": batch(7, 0.3, (7, 5, 4, 2), temperature=0.6),
        "on_policy": batch(8, 0.0, (7, 5, 4, 2), temperature=0.6)._replace(rollout_logp=None),
    }


# Our side.


class Case(NamedTuple):
    """A rule of ours with constants, an aggregation, and the measure of its binary divergence if it needs one."""

    rule: str
    constants: Mapping[str, float]
    aggregation: str
    measure: str | None = None


SETTINGS = json.loads(Path(__file__).with_name("suites.json").read_text(encoding="utf-8"))
CASES = {name: Case(**case) for name, case in SETTINGS["cases"].items()}
# What is changed on our side. `mean over`: what a loss is a mean of; unchanged, of the responses with a token.
EACH, ALL = "each micro-batch", "all responses"
LIMITS: Mapping[str, tuple[float, ...]] = {
    "dual_clip": (3.0,),
    "ratio_cap": (3.0, 5.0, 20.0, 1e4),
    "log_ratio_clamp": (10.0, 20.0),
}
GRID: Mapping[str, tuple[Any, ...]] = {
    **LIMITS,
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
    mode, over = changes.get("aggregation", case.aggregation), changes.get("mean over")
    constants = {**case.constants, **{key: changes[key] for key in LIMITS if key in changes}}
    whole = batch._replace(logits=batch.logits.double().requires_grad_())
    parts = list(whole.micro()) if over == EACH else [whole]
    losses = []
    for part in parts:
        logp = part.logp(changes.get("temperature"))
        mu = part.old_logp(logp).double()
        divergence = binary(logp.detach(), mu, case.measure) if case.measure else None
        tokens = Tokens(logp, mu, part.token_advantages.double(), part.valid, divergence)
        objective = get_rule(case.rule)(tokens, **constants).objective
        count = len(part.valid) if over == ALL and mode != "token-mean" else None
        losses.append(-aggregate(objective, part.valid, mode, denominator=count))
    loss = torch.stack(losses).sum() * changes.get("scale", 1.0) / len(parts)
    return Outcome(loss.item(), torch.autograd.grad(loss, whole.logits)[0])


def theirs(losses: Callable[..., Iterable[Tensor]], batch: Batch, native: Mapping[str, Any]) -> Outcome:
    """A suite's loss of a batch, summed over its micro-batches, and the gradient that this accumulates."""
    logits = batch.logits.clone().requires_grad_()
    total = 0.0
    for loss in losses(batch._replace(logits=logits), **native):
        if loss.requires_grad:  # else the suite has gone backward itself
            loss.backward()
        total += loss.item()
    assert logits.grad is not None
    return Outcome(total, logits.grad.double())


def changes_of(case: Case) -> Iterator[dict[str, Any]]:
    """Up to three changes of the grid that this case can have, fewest first, none at the start."""
    takes = rule_of(case.rule).constants()
    axes = {key: values for key, values in GRID.items() if key in takes or key not in LIMITS}
    for size in range(4):
        for keys in itertools.combinations(axes, size):
            for values in itertools.product(*(axes[key] for key in keys)):
                yield dict(zip(keys, values, strict=True))


# The comparison.


def difference(theirs: Outcome, mine: Outcome, batch: Batch) -> str:
    """What differs beyond TOLERANCE, in words: a factor, or the first token with another gradient. Empty: nothing."""
    if not torch.isfinite(theirs.gradient).all() or theirs.loss != theirs.loss:
        return "the loss or a gradient is NaN or infinite"
    error, scale = (part.abs().amax(-1) for part in (theirs.gradient - mine.gradient, mine.gradient))
    off = error > TOLERANCE * scale + FLOOR
    if not off.any():
        near = abs(theirs.loss - mine.loss) <= TOLERANCE * (abs(mine.loss) + 0.1)
        return "" if near else f"gradient equal, loss {theirs.loss:.4g}, here {mine.loss:.4g}"
    if (off & ~batch.valid).any():
        return "padding has a gradient"
    # In the logit of the sampled token, the gradient is a multiple of that in log pi(y), the same on both sides.
    there, here = (part.gradient.gather(-1, batch.tokens[..., None])[..., 0] for part in (theirs, mine))
    rows = [there[row][here[row] != 0] / here[row][here[row] != 0] for row in range(len(here))]
    steady = all(len(row) == 0 or row.max() - row.min() < 1e-3 * row.max().abs() for row in rows)
    if steady and not (off & (here == 0)).any():
        factors = " and ".join(dict.fromkeys(f"{row[0].item():.4g}" for row in rows if len(row)))
        return f"the gradients of the responses are {factors} times ours"
    row, token = off.nonzero()[0].tolist()
    ratio = (batch.logp() - batch.old_logp(batch.logp()))[row, token].exp().item()
    return (
        f"{off.sum()} of {batch.valid.sum()} tokens, first token {token + 1} of response {row + 1} with A = "
        f"{batch.advantages[row]:g} and ratio {ratio:.4g}: gradient {there[row, token]:.4g} in its logit, here "
        f"{here[row, token]:.4g}"
    )


class Row(NamedTuple):
    """A rule of a suite, compared. equal_if: our best setting; differences under it: `batch: what; batch: what`."""

    suite: str
    version: str
    rule: str
    settings: str
    equal_if: str
    differences: str

    @property
    def verdict(self) -> str:
        """In words."""
        batches = ", ".join(part.partition(":")[0] for part in self.differences.split("; "))
        setting = f"equal if {self.equal_if}" if self.equal_if else "equal"
        return f"{setting} except {batches}" if batches else setting


def compare(
    losses: Callable[..., Iterable[Tensor]], native: Mapping[str, Any], case: Case
) -> tuple[dict[str, Any], dict[str, str]]:
    """Our changes with which most batches are equal to a suite's loss with its settings, and what still differs."""
    outcomes: dict[str, Outcome] = {}
    raised: dict[str, str] = {}
    for name, batch in golden().items():
        try:
            outcomes[name] = theirs(losses, batch, native)
        except UserError:  # it cannot be imported
            raise
        except Exception as error:  # noqa: BLE001  whatever another suite raises is its answer
            raised[name] = f"{type(error).__name__}, {one_line(str(error))[:120]}".replace(";", ",")
    best: tuple[dict[str, Any], dict[str, str]] = {}, dict.fromkeys([*golden(), "one more"], "")
    for changes in changes_of(case):
        texts: dict[str, str] = {}
        for name, outcome in outcomes.items():
            batch = golden()[name]
            if text := difference(outcome, ours(batch, case, changes), batch):
                texts[name] = text
                if len(texts) == len(best[1]):
                    break  # no better
        else:
            best = changes, texts
        if not best[1]:
            break
    return best[0], best[1] | raised


# The table.


def matrix(rows: Sequence[Row]) -> str:
    """The Markdown table rule x suite: = equal, `if` equal under a setting, ≠ differs in some batch."""
    cells = {
        (row.rule, f"{row.suite}-{row.version}"): "≠" if row.differences else "if" if row.equal_if else "="
        for row in rows
    }
    suites = list(dict.fromkeys(suite for _, suite in cells))
    lines = [["rule", *suites], ["---"] * (len(suites) + 1)]
    rules = [rule for rule in CASES if any(rule == row.rule for row in rows)]
    lines += [[rule, *(cells.get((rule, suite), "") for suite in suites)] for rule in rules]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read_rows(path: Path) -> list[Row]:
    """The rows of a table. Raises UserError if it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Row(**row) for row in csv.DictReader(file)]
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): pass a table that --csv has written") from error


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Put the rows into a table, in place of those that it has of the same suite, version and rule."""
    before = read_rows(path) if path.exists() else []
    table = {row[:3]: row for row in (*before, *rows)}
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *(table[key] for key in sorted(table))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare a suite, or print a table; 0 if no rule differs, 1 if one does."""
    parser = argparse.ArgumentParser(
        prog="python -m cppo_lab.testing.across",
        description="Compare the losses of another suite with ours, or print a table of comparisons.",
    )
    parser.add_argument("suite", nargs="?", default="", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--rule", metavar="RULE", help="this one alone")
    parser.add_argument(
        "--version", metavar="TEXT", help="of a suite that runs from a checkout, such as its commit"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE.csv", help="put the rows into this table")
    parser.add_argument("--matrix", type=Path, metavar="FILE.csv", help="print this table as rule x suite")
    options = parser.parse_args(arguments)
    rows = []
    try:
        if options.matrix:
            print(matrix(read_rows(options.matrix)))
            return 0
        if options.suite not in SUITES:
            raise unknown("suite", options.suite, SUITES)
        facts = SETTINGS["suites"][options.suite]
        if options.rule not in (None, *facts["rules"]):
            raise unknown(f"rule of suite {options.suite!r}", options.rule, facts["rules"])
        losses = suite(options.suite, facts["absent"])
        version = options.version or metadata.version(options.suite)
        for rule, native in facts["rules"].items():
            if options.rule in (None, rule):
                changes, differences = compare(losses, facts["common"] | native, CASES[rule])
                settings, equal_if = (
                    ", ".join(f"{key}={value}" for key, value in values.items())
                    for values in (native, changes)
                )
                what = [f"{name}: {text}" for name, text in differences.items()]
                rows.append(Row(options.suite, version, rule, settings, equal_if, "; ".join(what)))
                print("\n    ".join([f"{rule}: {rows[-1].verdict}", *what]), flush=True)
        if options.csv:
            write_rows(options.csv, rows)
    except (UserError, metadata.PackageNotFoundError, OSError) as error:
        parser.exit(2, f"cppo: error: {message(str(error))}\n")
    return int(any(row.differences for row in rows))


if __name__ == "__main__":
    sys.exit(main())
