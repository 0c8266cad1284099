"""`cppo plan`, `cppo show`, `cppo diff`, `cppo pull`, `cppo preflight`, `cppo launch`, `cppo tune`."""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cppo_lab import schema
from cppo_lab.cli.command import Exit, answer, coloured, parse_states, passing, typed, width
from cppo_lab.core_records import core_of, cores_that
from cppo_lab.errors import StoreAway, UserError, counted, few, has, interrupt_on_termination, say, together
from cppo_lab.files import redacted, require_folder, runs_folder
from cppo_lab.launch.launchers import launcher_of
from cppo_lab.launch.queues import read_queues
from cppo_lab.runs.folder import read_status
from cppo_lab.runs.state import RunState, explained, state_of, states
from cppo_lab.sweep import table
from cppo_lab.sweep.columns import to_csv
from cppo_lab.sweep.cost import Limits, past_costs
from cppo_lab.sweep.doctor import require_machine, require_plan
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.file import Search, Study, Sweep, SweepFaults, load_sweep
from cppo_lab.sweep.plan import FoundRun, Plan, find_run, is_run_id, make_plan
from cppo_lab.tracking import address

if TYPE_CHECKING:
    from cppo_lab.search.space import Tuning
    from cppo_lab.sweep.launch import Launched, LaunchRequest


def load_checked(options: Namespace) -> Sweep | Study | Search:
    """`load_sweep`, whose error also has the mistakes that only a plan, or `resolve`, finds."""
    try:
        return load_sweep(options.sweep)
    except SweepFaults as error:
        faults, kind = [str(error)], "sweep"
        try:
            if isinstance(error.sound, Search):
                from cppo_lab.search.space import resolve

                kind = "search"
                resolve(error.sound, options.overrides)
            elif error.sound is not None:
                make_plan(error.sound, options.overrides)
        except UserError as more:
            faults.append(str(more))
        raise together(faults, f"{kind} {options.sweep}: ") from None


def planned(options: Namespace) -> tuple[Plan, str]:
    """The plan of the named sweep and the store to use."""
    plan = make_plan(load_checked(options), options.overrides)
    return plan, address.known_store(address.tracking_uri(plan.tracking.uri))


def plan(options: Namespace) -> int:
    """List the runs of a sweep."""
    declared = load_checked(options)
    for name in ("deviation", "effect", "correlation", "error_deviation"):
        if not options.power and (value := getattr(options, name)) is not None:
            raise UserError(f"--{name.replace('_', '-')}={value}: only valid with --power")
    if options.power:
        from cppo_lab.sweep import power

        if options.csv:
            raise UserError("--csv with --power: use --json")
        question = power.parse_question(
            options.deviation, options.effect, options.correlation, options.error_deviation
        )
    if isinstance(declared, Search):
        from cppo_lab.search.space import resolve
        from cppo_lab.search.study import storage_url

        if options.power:
            raise UserError(f"--power: {declared.name} is a search, which tests no claim; remove it")
        tuning = resolve(declared, options.overrides)
        return _outline(tuning, storage_url(), options, {"sweep": declared.name, "core": tuning.core})
    only = parse_states(options.state)
    plan = make_plan(declared, options.overrides)
    address.known_store(address.tracking_uri(plan.tracking.uri))  # refuses an address that no launch can use
    states, costs = plan_states(plan), past_costs(plan.runs)
    values = table.listing(plan, states, costs, only)
    if options.power:  # what the planned runs can decide: of each claim, or of two methods
        if powers := power.power_of(plan, question):
            values = power.power_values(plan, powers, question, costs)
            text = power.power_text(plan, powers, question, costs, width())
        else:
            differences = power.shown_differences(plan, question)
            values = power.shown_values(plan, differences, question)
            text = power.shown_text(differences, question, width())
        return answer(options, values, text)
    if options.json:
        answer(options, values)
    elif options.csv:
        print(to_csv(table.LISTED, values["runs"]), end="")
    else:
        shown = {row["run_id"] for row in values["runs"]}
        stop = "" if plan.title.endswith(("?", "!", ".")) else "."
        print(f"{plan.name}: {plan.title}{stop} {plan.question}".rstrip() + "\n")
        print(
            table.run_table(
                [run for run in plan.runs if run.run_id in shown], states, costs, width(), coloured()
            )
        )
        print("\n" + table.totals_line(plan, values["totals"]))
        if only:
            print(f"{len(shown)} of {len(plan.runs)} runs shown (--state {','.join(sorted(only))})")
        if cost := table.cost_summary(plan.runs, costs, states):
            print(cost)
        if note := without_folders(plan, options):
            print(note)
    return Exit.DONE


def plan_states(plan: Plan) -> dict[str, RunState]:
    """The state of every run of a plan. Writes nothing, and asks no store."""
    runs = runs_folder()
    return states(runs, [run.run_id for run in plan.runs], read_queues(runs, warn=True))


def without_folders(plan: Plan, options: Namespace) -> str:
    """A line on the runs that have no folder here, and may have been finished elsewhere; empty if all have a folder."""
    count = sum(not (runs_folder() / run.run_id).is_dir() for run in plan.runs)
    if not count:
        return ""
    they_were = "it was" if count == 1 else "they were"
    asks = f"`cppo pull {typed(options)}` asks the tracking store whether {they_were} finished elsewhere"
    return f"{counted(count, 'run')} {has(count)} no folder here: {asks}"


def show(options: Namespace) -> int:
    """Print the resolved configuration of a run, or of the runs of a sweep, as YAML."""
    if is_run_id(options.sweep):
        if options.overrides or options.run or options.verl:
            raise UserError(
                f"{options.sweep!r} is a run's id, and takes neither overrides nor --run nor --verl: name its sweep "
                f"instead: cppo show SWEEP --run {options.sweep}"
            )
        single = _find(options.sweep, options)
        sections = table.sections_of(single)
        text = table.run_yaml(single.planned, sections).removesuffix("\n")
        return answer(
            options, {"runs": [{"source": single.source, **sections}]}, f"# from {single.source}\n{text}"
        )
    plan = make_plan(load_checked(options), options.overrides)
    trainer_config = core_of(plan.core).load("trainer_config") if options.verl else None
    if options.verl and trainer_config is None:
        others = " or ".join(f"core={name}" for name in cores_that("trainer_config"))
        raise UserError(f"--verl: the runs of {options.sweep} are of core={plan.core}: add {others}")
    if options.within:
        raise UserError(f"--in {options.within[0]}: only valid with a run's id: remove it")
    documents, values = [], []
    for run in [run_of(plan, options.run)] if options.run else plan.runs:
        sections = table.describe(run, plan.paths)
        if trainer_config is not None:
            sections[plan.core] = trainer_config(run.spec, run.layout, plan.paths, runs_folder())
        documents.append(table.run_yaml(run, sections))
        values.append({"source": f"sweep {plan.name}", **sections})
    return answer(options, {"runs": values}, "---\n".join(documents).removesuffix("\n"))


def run_of(plan: Plan, beginning: str) -> PlannedRun:
    """The run of a plan whose id begins so. Raises UserError unless a single id does."""
    chosen = [run for run in plan.runs if run.run_id.startswith(beginning)]
    if len(chosen) != 1 or not beginning:
        what = "is a prefix of" if chosen else "is a prefix of none of"
        ids = ", ".join([run.run_id for run in chosen or plan.runs][:10])
        raise UserError(f"--run {beginning!r} {what} the ids {ids}: give more digits of one of them")
    return chosen[0]


def diff(options: Namespace) -> int:
    """Print what two runs differ in."""
    left, right = _find(options.left, options), _find(options.right, options)
    return answer(options, table.difference_values(left, right), table.difference_text(left, right))


def _find(beginning: str, options: Namespace) -> FoundRun:
    return find_run(beginning, runs_folder(), options.within)


def launch(options: Namespace) -> int:
    """Train the runs of a sweep that are not done."""
    plan, uri = planned(options)
    if options.stop_hopeless and options.until_decided:
        raise UserError(
            "--stop-hopeless with --until-decided: a stopped run counts in no test: remove one of them"
        )
    if options.stop_hopeless and launcher_of(plan.launcher.name).queue:
        name = plan.launcher.name
        raise UserError(
            f"--stop-hopeless: nobody watches runs of launcher={name}: choose launcher=local, or remove it"
        )
    from cppo_lab.sweep.launch import LaunchRequest

    request = LaunchRequest(
        replace=options.replace,
        without_store=options.without_store,
        limits=Limits(options.max_gpu_hours, options.max_disk),
        keep_going=options.keep_going,
        stop_hopeless=options.stop_hopeless,
    )
    if options.until_decided:
        return _until_decided(plan, uri, request, options)
    if options.max_seeds is not None:
        raise UserError(f"--max-seeds {options.max_seeds}: only valid with --until-decided")
    return train(plan, uri, request, options)


def _until_decided(plan: Plan, uri: str, request: "LaunchRequest", options: Namespace) -> int:
    """Train seed by seed until each hypothesis is decided; with a launcher that has a queue, one look."""
    from cppo_lab.reports.verdict_view import reason
    from cppo_lab.sweep.claims import judged, next_look, runs_at

    most, before = math.inf if options.max_seeds is None else options.max_seeds, None
    if most < schema.FIRST_LOOK:
        raise UserError(
            f"--max-seeds {most}: the first look is after {schema.FIRST_LOOK} seeds: give so many or more"
        )
    while True:
        verdicts = judged(plan, uri)
        runs = runs_at(plan, {verdict.claim: next_look(verdict, most) for verdict in verdicts})
        if not runs or runs == before:
            break
        one_look = options.dry_run or launcher_of(plan.launcher.name).queue is not None
        code = train(replace(plan, runs=runs), uri, request, options, quiet=not one_look)
        if code or one_look:
            return code
        before = runs
    if runs:
        raise UserError(
            "results of the last look are not in the tracking store: `cppo sync`, then the same command"
        )
    looked = runs_at(plan, {verdict.claim: verdict.looked for verdict in verdicts})
    code = train(replace(plan, runs=looked), uri, request, options)
    for verdict in verdicts:
        say(f"{verdict.claim.text}: {verdict.outcome.value}. {reason(verdict)}")
    return code


def pull(options: Namespace) -> int:
    """Write what was finished elsewhere into the folders of runs without a record here."""
    from cppo_lab.sweep.launch import look_ahead, write_stubs

    plan, uri = planned(options)
    ahead = look_ahead(plan, uri, read_queues(runs_folder(), warn=True))
    if ahead.silence:
        raise StoreAway(ahead.silence)
    write_stubs(plan, uri, ahead)
    new = [run_id for run_id in ahead.elsewhere if run_id in ahead.unknown]
    values = {"sweep": plan.name, "core": plan.core, "store": redacted(uri), "asked": list(ahead.unknown)}
    asked = counted(len(ahead.unknown), "run")
    text = f"{asked} without a record here; finished elsewhere: {len(new)} ({redacted(uri)})"
    return answer(options, values | {"pulled": new, "removed": list(ahead.gone)}, text)


def preflight(options: Namespace) -> int:
    """Measure each kind of run of a sweep with a short job, and say what the whole sweep will take."""
    from cppo_lab.sweep import preflight as short

    plan, uri = planned(options)
    runs = runs_folder()
    require_folder(runs)
    kinds = short.kinds(plan, runs, options.random_weights)
    todo = [] if options.show else short.open_kinds(kinds, plan, runs, options.again)
    if todo and options.random_weights:
        plan = short.with_stand_ins(todo, plan, runs)
    if todo:
        require_plan(plan, uri)
        interrupt_on_termination()
        say(f"{plan.name}: {counted(len(todo), 'short job')}, of {len(kinds)} kinds of runs")
        short.measure(todo, plan, runs)
    values = {"sweep": plan.name, "core": plan.core, "kinds": list(map(short.as_values, kinds))}
    answer(options, values, "\n\n".join(short.report(kind) for kind in kinds))
    launcher = launcher_of(plan.launcher.name)
    if launcher.queue and todo:
        if not options.json:
            print(f"\n{launcher.title} has the jobs: show their results with --show")
        return Exit.DONE
    return Exit.DONE if all(kind.is_measured for kind in kinds) else Exit.NO


def train(
    plan: Plan,
    uri: str,
    request: "LaunchRequest",
    options: Namespace,
    quiet: bool = False,
    others_unfinished: bool = False,
) -> int:
    """Train the runs of a plan, and say what came of it; if `quiet`, only of what is not done. `others_unfinished`: the
    sweep has unfinished runs beside the plan's.
    """
    from cppo_lab.sweep.launch import launch
    from cppo_lab.tracking.page import where_to_look

    if options.dry_run:
        return _dry_run(plan, uri, request, options)
    require_plan(plan, uri)
    interrupt_on_termination()  # the runs are ended and recorded
    passing("reading the tracking store")
    # What is said of how to go on has no address of a webhook.
    options.overrides = [text for text in options.overrides if not text.startswith("notify.")]
    done = launch(plan, uri, request)
    if quiet and all(state.state in schema.FINISHED for state in done.states.values()):
        return Exit.DONE
    if options.json:
        answer_launch(plan, done, options)
    else:
        costs = past_costs(plan.runs)
        statuses = {run.run_id: read_status(runs_folder() / run.run_id) for run in plan.runs}
        scores = table.score_table(plan.runs, statuses, width())
        others = [run for run in plan.runs if done.states[run.run_id].state != schema.DONE]
        listed = table.run_table(others, done.states, costs, width(), coloured()) if others else ""
        print("\n\n".join(filter(None, (scores, listed))))
        for run_id, old in done.replaced.items():
            for mlflow_id in old:
                print(
                    f"{run_id}: replaced a result, kept by MLflow: mlflow runs restore --run-id {mlflow_id}"
                )
        print()
        if scores:
            gaps = any(state.state not in schema.FINISHED for state in done.states.values())
            partial = " --partial" if gaps or others_unfinished else ""
            print(f"Report:\n  cppo report {typed(options)}{partial}")
        print(f"In MLflow:\n  {where_to_look(uri, schema.experiment_name(plan.core))}")
    return _what_is_left(plan, done, options)


def answer_launch(plan: Plan, done: "Launched", options: Namespace) -> None:
    """What --json says of a launch, also of a dry run or with nothing to train."""
    of_launch = {
        "dry_run": options.dry_run,
        "to_train": list(done.trained),
        "left": list(done.left),
        "replaced": done.replaced,
        "held": list(done.held),
        "not_started": done.not_started,
    }
    answer(options, table.listing(plan, done.states, past_costs(plan.runs)) | of_launch)


def _dry_run(plan: Plan, uri: str, request: "LaunchRequest", options: Namespace) -> int:
    """Say what `train` would do. Writes nothing."""
    from cppo_lab.sweep.launch import choose, look_ahead

    queued = read_queues(runs_folder(), warn=True)
    ahead = look_ahead(plan, uri, queued, request)
    present = {run_id: state_of(ahead.folders[run_id], queued) for run_id in ahead.replaces}
    shown = explained(ahead.states | present, queued)
    done = replace(choose(plan, ahead, uri, request), states=shown, replaced=ahead.replaced(uri))
    code = Exit.STORE_AWAY if done.held else Exit.DONE
    if options.json:
        answer_launch(plan, done, options)
        return code
    planned_runs = {run.run_id: run for run in plan.runs}
    todo = [planned_runs[run_id] for run_id in done.trained]
    costs = past_costs(plan.runs)
    if todo:
        print(table.run_table(todo, shown, costs, width(), coloured()) + "\n")
    again = f", {len(ahead.replaces)} of them again" if ahead.replaces else ""
    print(f"would train {len(todo)} of {len(plan.runs)} runs{again} with launcher={plan.launcher.name}")
    _tell_not_started(done.not_started)
    if done.left:
        print(f"{len(done.left)} failed with an error: only `cppo retry` retrains them")
    if cost := table.cost_summary(todo, costs):
        print(cost)
    return code


def _tell_not_started(not_started: Mapping[str, str], how: str = "") -> None:
    """A line for each reason why runs have not begun, and `how` to go on."""
    for why in dict.fromkeys(not_started.values()):
        run_ids = [run_id for run_id, reason in not_started.items() if reason == why]
        remedy = "" if why.startswith("--") else how
        say(f"cppo: {counted(len(run_ids), 'run')} not started ({few(run_ids)}): {why}{remedy}")


def _what_is_left(plan: Plan, done: "Launched", options: Namespace) -> int:
    """Say how to go on; 0 if that needs nothing but time."""

    sweep = typed(options)
    if done.left:
        they_are = "is" if len(done.left) == 1 else "are"
        say(
            f"cppo: {counted(len(done.left), 'run')} failed with an error and {they_are} not retrained: see `cppo "
            f"status {sweep}`, then `cppo retry {sweep} --failed`"
        )
    counts = Counter(state.state for state in done.states.values() if state.state not in schema.FINISHED)
    launcher = launcher_of(plan.launcher.name)
    remedy = f": mend it, then `cppo retry {sweep} --failed` and `cppo launch {sweep}`; or launch with --keep-going"
    _tell_not_started(done.not_started, remedy)
    if done.held:
        return Exit.STORE_AWAY
    if launcher.queue and counts and not counts.keys() - {schema.RUNNING, schema.QUEUED}:
        if not options.json:
            print(f"{launcher.title} has them: cppo watch {sweep}; cppo status {sweep}")
        return Exit.DONE
    if counts:
        kinds = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        failed = counts[schema.FAILED]
        how = f"cppo retry {sweep} --failed retrains the failed ones" if failed else ""
        if counts.total() > failed + len(done.not_started):
            how = "run the same command to continue" + (f", and {how}" if failed else "")
        say(f"cppo: {counts.total()} of {len(done.states)} runs are not done ({kinds}): {how or 'see above'}")
    if counts[schema.FAILED]:
        return Exit.RUNS_FAILED
    return Exit.NO if counts else Exit.DONE


def tune(options: Namespace) -> int:
    """Search for the best constants; go on where an earlier command, or another command, is."""
    declared = load_checked(options)
    if not isinstance(declared, Search):
        raise UserError(
            f"{options.sweep} has no key `search`: it is not a search: cppo launch {typed(options)}"
        )
    # Optuna takes seconds to import: mistakes in the file are reported before.
    from cppo_lab.search.space import resolve
    from cppo_lab.search.study import storage_url
    from cppo_lab.search.worker import tune as carry_out
    from cppo_lab.tracking.page import where_to_look

    tuning = resolve(declared, options.overrides, options.study, options.trials)
    url = storage_url(options.storage)
    uri = address.tracking_uri(tuning.base.tracking.uri)
    if options.dry_run:
        return _outline(tuning, url, options, {"storage": redacted(url), "dry_run": True, "text": ""})
    require_machine([tuning.base], uri)
    interrupt_on_termination()
    text, over = carry_out(tuning, uri, url, runs_folder())
    if options.json:
        _outline(tuning, url, options, {"storage": redacted(url), "dry_run": False, "text": text})
    else:
        study = ["--study", options.study] if options.study else []
        print(f"{text}\n\nStudy {tuning.study} in {redacted(url)}")
        print(f"In MLflow:\n  {where_to_look(uri, schema.experiment_name(tuning.core))}")
        print(f"The report: cppo report {typed(options, *study)}")
    return Exit.DONE if over else Exit.NO


def _outline(tuning: "Tuning", url: str, options: Namespace, more: dict[str, object]) -> int:
    """The space of a search, what is done of it and what a trial costs, as text or, with `more`, as JSON."""
    from cppo_lab.search.space import describe
    from cppo_lab.search.study import counts, find_trials, summary_text

    trials = find_trials(tuning, url)
    if not options.json:
        print(summary_text(tuning, trials))
        return Exit.DONE
    values = {
        "study": tuning.study,
        "model": tuning.model,
        "seeds": list(tuning.seeds),
        "objectives": list(tuning.search.search.objectives),
        "parameters": {key: describe(parameter) for key, parameter in tuning.space.items()},
        "trials": tuning.trials,
        "states": counts(tuning, trials),
    }
    return answer(options, {"search": values, **more})
