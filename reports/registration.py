"""Whether the hypotheses of a sweep were stated before the runs that test them."""

import time
from dataclasses import dataclass

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim


@dataclass(frozen=True)
class Hypotheses:
    """A sweep file's own claims, the digest of what it states of them, and what the store has registered for the
    sweep: (digest, milliseconds since the epoch), the oldest first.
    """

    claims: tuple[Claim, ...] = ()
    digest: str = ""
    registered: tuple[tuple[str, int], ...] = ()


NONE_STATED = Hypotheses()


def registration_words(stated: Hypotheses, claim: Claim, board: Scoreboard) -> str:
    """A sentence for one of the claims: by when it was registered and when the first run began that tests it."""
    now = next((since for digest, since in stated.registered if digest == stated.digest), None)
    others = [(digest, since) for digest, since in stated.registered if digest != stated.digest]
    if now is None:
        if not others:
            return "Not registered: `cppo launch` registers hypotheses before their runs."
        digest, since = others[-1]
        return (
            f"Not as registered on {_when(since)} ({digest}): the sweep file has changed since (now {stated.digest}). "
            "Exploratory."
        )
    starts = _starts(claim, board)
    runs = f"{len(starts)} run{'s' * (len(starts) != 1)}"
    if early := sum(start < now for start in starts):
        return (
            f"Registered on {_when(now)} ({stated.digest}), when {early} of the {runs} that test it had begun. "
            "Exploratory."
        )
    return (
        f"Pre-registered on {_when(now)} ({stated.digest}), before any of the {runs} that test it; unchanged."
    )


def _starts(claim: Claim, board: Scoreboard) -> list[int]:
    """When each attempt at a run that tests the claim began, in milliseconds since the epoch."""
    variants = {variant for tier in claim.tiers for variant in tier}
    tests = {
        run.run_id
        for run in board.runs
        if run.variant in variants and (claim.seeds is None or run.seed in claim.seeds)
    }
    found = board.data.runs
    return [
        int(start.timestamp() * 1000)
        for run_id, start in zip(found["run_id"], found["start"], strict=True)
        if run_id in tests
    ]


def _when(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ms / 1000))
