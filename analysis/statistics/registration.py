"""Whether the hypotheses of a sweep were stated before the runs that test them, and whether all these have results."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.verdicts import Verdict, VerdictOutcome
from cppo_lab.errors import counted


@dataclass(frozen=True)
class Registered:
    """One registration of a sweep's hypotheses in the store: the digest of their statement, and when (milliseconds
    since the epoch).

    `code`: the version that registered it, "" if unknown. `settings_differ`: the settings of the runs were others then.
    `changes`: what the sweep states differently now, for a registration of another statement. `looks`: each (seeds, of
    so many test seeds) at which somebody saw results before the end.
    """

    digest: str
    since: int
    code: str = ""
    settings_differ: bool = False
    changes: tuple[str, ...] = ()
    looks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Hypotheses:
    """A sweep file's claims, the digest of their statement (empty for
    a file without hypotheses), and the sweep's registrations in the store, the oldest first. `deleted`: run id -> when
    the first of its deleted or replaced results began (milliseconds since the epoch). `code`: the version that analyses
    the results.
    """

    claims: tuple[Claim, ...] = ()
    digest: str = ""
    registered: tuple[Registered, ...] = ()
    code: str = ""
    deleted: Mapping[str, int] = field(default_factory=dict)


NONE_STATED = Hypotheses()


@dataclass(frozen=True)
class Standing:
    """What a result on a hypothesis counts for. `words`: when it was registered, what has changed since, and which runs
    are missing. `confirmatory`: registered before all of its runs, unchanged, and all of its runs have a result; a
    sequential claim may stop before.
    """

    words: str
    confirmatory: bool


def standing(stated: Hypotheses, claim: Claim, board: Scoreboard) -> Standing:
    """The standing of one of the claims in this report."""
    same = [registered for registered in stated.registered if registered.digest == stated.digest]
    others = [registered for registered in stated.registered if registered.digest != stated.digest]
    now = next((registered for registered in same if not registered.settings_differ), None)
    if now is None:
        return Standing(f"{_not_registered(stated, same, others)} Exploratory.", False)
    begun = f"on {_when(now.since)} ({stated.digest})"
    starts = _starts(claim, board, stated.deleted)
    if not starts:
        text = f"Pre-registered {begun}; none of the runs that test it is in this report."
        return Standing(text + _versions(others), False)
    tests = f"the {counted(len(starts), 'run')} that test it"
    if early := sum(start < now.since for start in starts.values()):
        text = f"Registered {begun}, when {early} of {tests} had begun. Exploratory."
        return Standing(text + _versions(others), False)
    text = f"Pre-registered {begun}, before any of {tests}; unchanged."
    if now.looks and not claim.sequential:
        seeds, of = now.looks[0]
        times = counted(len(now.looks), "time")
        text += f" Looked at {times} before the end, first at {seeds} of {of} seeds."
    absent = frozenset() if claim.sequential else claim.tests - board.results
    if absent:
        total = counted(len(claim.tests), "run")
        text += f" Of the {total} that test it, {len(absent)} have no result in this report: exploratory."
    if now.code not in ("", stated.code):
        text += f" Registered with version {now.code}, analysed with {stated.code}."
    return Standing(text + _versions(others), not absent)


def is_exploratory(verdict: Verdict, standing: Standing | None) -> bool:
    """Whether a verdict confirms nothing.

    Either by the `standing` of a sweep's hypothesis (None: a claim of the paper), or because it is decided although
    the claim before it is not supported.
    """
    decided = verdict.outcome is not VerdictOutcome.UNDECIDED
    return (verdict.after is not None and decided) or (standing is not None and not standing.confirmatory)


def withdrawn(name: str, stated: Hypotheses) -> tuple[str, ...]:
    """A sentence on hypotheses that are registered for the sweep `name` although its file has none; else nothing."""
    if stated.digest or not stated.registered:
        return ()
    listed = "; ".join(
        f"{registered.digest} on {_when(registered.since)}" for registered in stated.registered
    )
    return (
        f"Hypotheses of {name} were registered ({listed}) and are not in its file any more, so nothing here confirms "
        "or refutes them.",
    )


def _not_registered(stated: Hypotheses, same: Sequence[Registered], others: Sequence[Registered]) -> str:
    if same:
        return (
            f"Not as registered on {_when(same[-1].since)} ({stated.digest}): settings of its runs outside the sweep "
            "file (in conf/) have changed since."
        )
    if not others:
        return "Not registered: `cppo launch` registers hypotheses before their runs."
    last = others[-1]
    changed = f": {'; '.join(last.changes)}" if last.changes else ""
    return (
        f"Not as registered on {_when(last.since)} ({last.digest}): the sweep file or the overrides have changed since "
        f"(now {stated.digest}){changed}."
    )


def _versions(others: Sequence[Registered]) -> str:
    """The other statements registered for the sweep, which somebody could have chosen from afterwards."""
    if not others:
        return ""
    listed = "; ".join(
        f"{other.digest} on {_when(other.since)}"
        + (f" ({', '.join(other.changes)})" if other.changes else "")
        for other in others
    )
    return f" Other versions registered for this sweep: {listed}."


def _starts(claim: Claim, board: Scoreboard, deleted: Mapping[str, int]) -> dict[str, int]:
    """When each run that tests the claim first began, in milliseconds since the epoch, by run id. A result that was
    deleted or replaced has been seen, too.
    """
    tests = {
        run.run_id
        for run in board.runs
        if run.seed is not None and claim.is_tested_by(run.model, run.variant, run.seed)
    }
    frame = board.data.runs
    starts: dict[str, int] = {}
    for run_id, start in zip(frame["run_id"], frame["start"], strict=True):
        if run_id in tests:
            began = int(start.timestamp() * 1000)
            starts[run_id] = min(began, starts.get(run_id, began), deleted.get(run_id, began))
    return starts


def _when(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ms / 1000))
