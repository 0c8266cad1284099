"""What a plan asks of the analysis: its hypotheses as claims, which `cppo report` judges and `cppo plan --power`
simulates, and its grids with their axes and baselines.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cppo_lab import schema
from cppo_lab.analysis.inputs import USUAL, Axes, AxisPlace, Baseline, ExpectedRun, SweepGrid, integer
from cppo_lab.analysis.statistics.claims import Claim, Hypotheses, Kind, Registered, log_size
from cppo_lab.analysis.statistics.values import Quantity, Score
from cppo_lab.analysis.statistics.verdicts import Verdict, VerdictOutcome, verdicts
from cppo_lab.core_records import core_of
from cppo_lab.errors import StoreAway, UserError, say
from cppo_lab.runs.machine import code_version
from cppo_lab.sweep.enumerate import PlannedRun, RunPlace
from cppo_lab.sweep.file import ERRORS, Sweep, differences
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking import address


def claims_of(plan: Plan, sweep: Sweep, with_tests: bool = True) -> tuple[Claim, ...]:
    """The hypotheses of a sweep, those about the surrogate's error first. `with_tests`: each with the runs that test
    it, whichever are planned.
    """
    declared = plan.parts[sweep.name].declared.places if with_tests else frozenset()
    cells = {(model, variant) for model, variant, _ in declared}
    # The paper's claims have keys too, and the sweeps of a study may use the same.
    prefix = f"hypothesis {sweep.name} " if plan.is_study else "hypothesis "
    claims = []
    for key, hypothesis in sweep.hypotheses.items():
        of_errors = hypothesis.outcome in ERRORS
        size = log_size if of_errors else float
        kind = Kind.SUPERIORITY if hypothesis.within is None else Kind.EQUIVALENCE
        claim = Claim(
            key=f"{prefix}{key}",
            text=hypothesis.claim,
            sweep=sweep.name,
            kind=Kind.TREND if hypothesis.models == "trend" else kind,
            tiers=(hypothesis.better, hypothesis.than),
            margin=None if hypothesis.within is None else size(hypothesis.within / 100),
            over_models=hypothesis.models == "mean",
            after=hypothesis.after and f"{prefix}{hypothesis.after}",
            smallest=size(hypothesis.smallest / 100),
            score=Quantity(hypothesis.outcome) if of_errors else Score(hypothesis.outcome),
            seeds=hypothesis.test_seeds,
            models=hypothesis.only or (),
            sequential=bool(hypothesis.sequential),
        )
        # A test seed that the file does not declare is missing for each cell.
        missing = {*hypothesis.test_seeds} - {seed for _, _, seed in declared}
        places = declared | {(*cell, seed) for cell in cells for seed in missing}
        tests = frozenset(place for place in places if claim.is_tested_by(*place))
        claims.append(replace(claim, tests=tests))
    return tuple(sorted(claims, key=lambda claim: not claim.of_errors))


def grids_of(plan: Plan) -> tuple[SweepGrid, ...]:
    """The grid of each sweep of a plan, with the runs that are planned of it."""
    return tuple(
        SweepGrid(
            sweep.name,
            sweep.title,
            sweep.question,
            tuple(
                ExpectedRun(run.run_id, *run.place(sweep.name))
                for run in plan.runs
                if sweep.name in run.variants
            ),
            _baseline(plan, sweep),
            sweep.paired,
        )
        for sweep in plan.sweeps
    )


def judged(plan: Plan, uri: str) -> tuple[Verdict, ...]:
    """The hypotheses of a plan, all of them sequential, by the runs that the store at `uri` has.

    Raises UserError for a plan without hypotheses, or with a hypothesis that is judged once.
    """
    from cppo_lab.analysis.study import read_study

    claims = [claim for sweep in plan.sweeps for claim in claims_of(plan, sweep)]
    if not claims:
        raise UserError(f"--until-decided: {plan.name} has no hypotheses: state them in its file")
    if once := [claim.key for claim in claims if not claim.sequential]:
        raise UserError(
            f"--until-decided: {once[0]} is judged once: state `sequential: true` before its first run, or launch "
            "without the option"
        )
    if address.is_absent(uri):
        return verdicts({}, claims)
    try:
        study = read_study(uri, schema.experiment_name(plan.core), plan.name, grids_of(plan), True)
    except StoreAway:
        raise
    except UserError:  # it has no result yet
        return verdicts({}, claims)
    return verdicts(study.boards, claims)


def not_awaited(plan: Plan, uri: str) -> set[str]:
    """The ids of the runs that no hypothesis waits for: their seeds come after the look that decided it. Empty if the
    store cannot be read.
    """
    from cppo_lab.analysis.study import read_study

    claims = {sweep.name: claims_of(plan, sweep) for sweep in plan.sweeps}
    if not any(claim.sequential for of_sweep in claims.values() for claim in of_sweep):
        return set()
    grids, experiment = grids_of(plan), schema.experiment_name(plan.core)
    try:
        boards = read_study(uri, experiment, plan.name, grids, partial=True, claims=claims).boards
    except UserError:
        return set()
    awaited = {
        run.run_id
        for grid in grids
        for run in (boards[grid.name].runs if grid.name in boards else grid.expected)
    }
    return {run.run_id for run in plan.runs} - awaited


def next_look(verdict: Verdict, most: float) -> int:
    """The seeds at the next look at a sequential hypothesis, of at most `most`; 0: there is none."""
    seeds = int(min(max(schema.FIRST_LOOK, verdict.looked + 1), most, len(verdict.claim.seeds or ())))
    return seeds if verdict.outcome is VerdictOutcome.UNDECIDED and seeds > verdict.looked else 0


def runs_at(plan: Plan, looks: Mapping[Claim, int]) -> tuple[PlannedRun, ...]:
    """The runs of a look at each hypothesis with so many of its seeds."""
    tests = {
        (claim.sweep, place)
        for claim, count in looks.items()
        for place in claim.tests
        if place[2] in (claim.seeds or ())[:count]
    }
    return tuple(run for run in plan.runs if any((name, run.place(name)) in tests for name in run.variants))


def axes_of(plan: Plan, sweep: Sweep) -> Axes:
    """Where the variants of a sweep are on its axes."""
    labels = plan.parts[sweep.name].axes
    keys = tuple(dict.fromkeys(key for _, values in labels.values() for key in values))
    places = (
        AxisPlace(variant, group, tuple(values.get(key) for key in keys))
        for variant, (group, values) in labels.items()
    )
    return Axes(keys, tuple(places))


def _baseline(plan: Plan, sweep: Sweep) -> Baseline:
    """The sweep's baseline: a reported variant, or a variant of its file for each combination of values of its axes."""

    baseline = sweep.baseline
    if not baseline or any(run.variants.get(sweep.name) == baseline for run in plan.runs):
        return Baseline(baseline)
    labels = plan.parts[sweep.name].axes
    named = {variant: values for variant, (group, values) in labels.items() if group == baseline}
    if not named:
        return USUAL
    # An axis of one value is a setting of all runs, also of those that lack it.
    counts = Counter(key for key, _ in {item for _, values in labels.values() for item in values.items()})
    settings = {key: value for of in named.values() for key, value in of.items() if counts[key] == 1}
    counterparts = {
        variant: [name for name, values in named.items() if values.items() <= (settings | given).items()]
        for variant, (_, given) in labels.items()
    }
    return Baseline(baseline, {variant: bases[0] for variant, bases in counterparts.items() if bases})


def note_looks(plan: Plan, uri: str) -> None:
    """Keep with the registered hypotheses of a plan that somebody sees results while only some of their test seeds have
    all their runs, once for each such state. Looks at sequential hypotheses are planned. A store that does not take it
    costs a line. Raises UserError if it cannot be read.
    """
    stated = [
        sweep
        for sweep in plan.sweeps
        if not all(hypothesis.sequential for hypothesis in sweep.hypotheses.values())
    ]
    if not stated or address.is_absent(uri):
        return
    from cppo_lab.tracking.client import STORE_FAULTS, fault_line
    from cppo_lab.tracking.history import recorded_status
    from cppo_lab.tracking.page import find_registrations, note_look
    from cppo_lab.tracking.read import newest_runs, reading

    experiment = schema.experiment_name(plan.core)
    with reading(uri) as client:
        tags = [run.data.tags for run in newest_runs(client, experiment, tag=schema.TAG_RUN_ID)]
        results = [of_run for of_run in tags if recorded_status(of_run) in schema.FINISHED]
        for sweep in stated:
            if (look := _look(plan, sweep, results)) is None:
                continue
            (_, digest), settings = plan.statement(sweep), plan.parts[sweep.name].declared.settings
            for registration in find_registrations(client, experiment, sweep.name):
                if registration.covers(digest, settings):
                    try:
                        note_look(client, registration, look)
                    except (*STORE_FAULTS, UserError) as error:
                        say(f"cppo: this look at unfinished tests was not recorded: {fault_line(error)}")


def _look(plan: Plan, sweep: Sweep, results: Sequence[Mapping[str, str]]) -> tuple[int, int] | None:
    """How many test seeds of a hypothesis are complete, of how many; None if none is complete, or all are. `results`:
    the tags of finished runs.
    """
    # Runs that another sweep has trained are known by their ids; those that the plan leaves out, by their tags.
    named = {run.run_id: run for run in plan.runs if sweep.name in run.variants}
    places: set[RunPlace] = set()
    for tags in results:
        if run := named.get(tags[schema.TAG_RUN_ID]):
            places.add(run.place(sweep.name))
        elif variant := tags.get(schema.sweep_tag(sweep.name)):
            seed = integer(tags.get(schema.TAG_SEED, ""))
            if seed is not None:
                places.add((tags.get(schema.TAG_MODEL, ""), variant, seed))
    counts = [
        (len({*claim.seeds} - {seed for *_, seed in claim.tests - places}), len(claim.seeds))
        for claim in claims_of(plan, sweep)
        if claim.seeds and not claim.sequential
    ]
    return max((count for count in counts if 0 < count[0] < count[1]), default=None)


def stated_in(plan: Plan, uri: str, experiment: str) -> dict[str, Hypotheses]:
    """The hypotheses of the plan's sweeps, by sweep, and what the store at `uri` has registered for each.

    Raises UserError if the store cannot be read.
    """
    from cppo_lab.tracking.page import deleted_starts, find_registrations, read_statement
    from cppo_lab.tracking.read import reading

    stated = {}
    with reading(uri) as client:
        deleted = deleted_starts(client, experiment) if any(sweep.hypotheses for sweep in plan.sweeps) else {}
        for sweep in plan.sweeps:
            registrations = find_registrations(client, experiment, sweep.name)
            registered = [
                Registered(
                    registration.digest, registration.time_ms, registration.code, looks=registration.looks
                )
                for registration in registrations
            ]
            if not sweep.hypotheses:
                stated[sweep.name] = Hypotheses(registered=tuple(registered))
                continue
            text, digest = plan.statement(sweep)
            settings = plan.parts[sweep.name].declared.settings
            in_force = [
                registration for registration in registrations if registration.covers(digest, settings)
            ]
            for i, registration in enumerate(registrations):
                if registration.digest == digest:
                    registered[i] = replace(registered[i], settings_differ=registration not in in_force)
                elif (before := read_statement(client, registration)) is not None:
                    registered[i] = replace(registered[i], changes=differences(before, text))
            # Whether they were registered, the oldest in force first, as comparisons seed by seed. A version that did
            # not record it paired by the sweep file and by warm starts, not by the record of the core.
            now = then = plan.is_paired(sweep.name)
            if in_force:
                unrecorded = now and (sweep.paired is not None or not core_of(plan.core).seed_fixes_start)
                then = {"seed": True, "none": False}.get(in_force[0].pairing, unrecorded)
            pairing = None if then == now else then
            stated[sweep.name] = Hypotheses(
                claims=tuple(
                    claim if claim.of_errors or claim.sequential else replace(claim, pairing=pairing)
                    for claim in claims_of(plan, sweep)
                ),
                digest=digest,
                registered=tuple(registered),
                code=code_version(),
                deleted=deleted,
            )
    return stated
