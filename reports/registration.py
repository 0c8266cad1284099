"""Whether the hypotheses of a sweep were stated before the runs that test them."""

import time
from dataclasses import dataclass

from cppo_lab.analysis.exact_claims import ErrorClaim
from cppo_lab.analysis.exact_study import without_horizon
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore
from cppo_lab.analysis.statistics.claims import Claim


@dataclass(frozen=True)
class Hypotheses:
    """A sweep file's own claims (`errors`: those about the surrogate's error), the digest of their statement, and the
    sweep's registrations in the store: (digest, milliseconds since the epoch), oldest first.
    """

    claims: tuple[Claim, ...] = ()
    errors: tuple[ErrorClaim, ...] = ()
    digest: str = ""
    registered: tuple[tuple[str, int], ...] = ()


NONE_STATED = Hypotheses()


def registration_words(stated: Hypotheses, claim: Claim | ErrorClaim, board: Scoreboard) -> str:
    """A sentence on one of the claims: when it was registered, and whether runs that test it had begun before."""
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
    if not starts:
        return f"Pre-registered on {_when(now)} ({stated.digest}); none of the runs that test it is in this report."
    runs = f"{len(starts)} run{'s' * (len(starts) != 1)}"
    if early := sum(start < now for start in starts):
        return (
            f"Registered on {_when(now)} ({stated.digest}), when {early} of the {runs} that test it had begun. "
            "Exploratory."
        )
    return (
        f"Pre-registered on {_when(now)} ({stated.digest}), before any of the {runs} that test it; unchanged."
    )


def tests_claim(claim: Claim | ErrorClaim, run: RunScore) -> bool:
    """Whether a run is one of those that test the claim."""
    if claim.seeds is not None and run.seed not in claim.seeds:
        return False
    if isinstance(claim, ErrorClaim):
        return without_horizon(run.variant) in claim.variants and run.model in (claim.models or (run.model,))
    return any(run.variant in tier for tier in claim.tiers)


def _starts(claim: Claim | ErrorClaim, board: Scoreboard) -> list[int]:
    """When each attempt at a run that tests the claim began, in milliseconds since the epoch."""
    tests = {run.run_id for run in board.runs if tests_claim(claim, run)}
    found = board.data.runs
    return [
        int(start.timestamp() * 1000)
        for run_id, start in zip(found["run_id"], found["start"], strict=True)
        if run_id in tests
    ]


def _when(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ms / 1000))
