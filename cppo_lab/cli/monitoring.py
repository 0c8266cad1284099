"""`cppo status`, `watch`, `logs`, `cancel`, `retry`, `sync`, `note`, `clean`: many runs, whoever launched them."""

import contextlib
import os
import re
import sys
import time
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cppo_lab import schema
from cppo_lab.cli.command import Exit, answer, coloured, counter, parse_states, typed, width
from cppo_lab.errors import UserError, counted, harmless, say
from cppo_lab.files import redacted, runs_folder
from cppo_lab.launch import queues
from cppo_lab.runs.folder import parse_variants, read_status
from cppo_lab.runs.spool import add_notes, newest_record, notes, unsent
from cppo_lab.sweep import status as statuses
from cppo_lab.sweep.columns import aligned, to_csv
from cppo_lab.sweep.status import RunStatus, run_by_beginning, run_folders, run_statuses
from cppo_lab.tracking import address

SYNC_SECONDS = 5.0  # between two looks of `cppo sync --watch`

if TYPE_CHECKING:
    from cppo_lab.sweep.plan import Plan


def status(options: Namespace) -> int:
    """Print the state of the runs of a sweep, or of all known runs."""
    states = parse_states(options.state)
    plan, uri = _planned(options)
    read_statuses = status_reader(plan)
    if options.repair:
        run_ids = [run.run_id for run in read_statuses()]
        for line in queues.repair(runs_folder(), run_ids, uri) or ["nothing to repair"]:
            say(line)
    runs = read_statuses()
    shown = statuses.ordered(runs, options.sort and options.sort.replace("-", "_"))
    shown = [run for run in shown if not states or run.state in states]
    if options.json:
        answer(options, statuses.as_values(shown, runs))
    elif options.csv:
        print(to_csv(statuses.COLUMNS, map(statuses.values, shown)), end="")
    elif not runs:
        print(f"there are no runs in {runs_folder()}: `cppo launch SWEEP` trains some")
    else:
        print(
            statuses.table(shown, width(), coloured())
            if shown
            else f"no run is {' or '.join(sorted(states))}"
        )
        print(f"\n{statuses.totals(runs)}")
        if plan is not None:
            from cppo_lab.cli.training import without_folders

            if note := without_folders(plan, options):
                print(note)
    return Exit.DONE


def watch(options: Namespace) -> int:
    """Show the runs until all have ended; 0 only if all are done."""
    if not 0.2 <= options.every <= 86_400:
        raise UserError(f"--every {options.every:g}: seconds between updates, 0.2 to 86400")
    command = statuses.parse_command(options.notify) if options.notify is not None else None
    plan, uri = _planned(options)
    read_statuses = status_reader(plan)
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(Path(os.devnull).open("w")) if options.json else sys.stdout
        runs = statuses.watch(read_statuses, options.every, out, coloured())
    answer(options, statuses.as_values(runs, runs))
    if command is not None:
        statuses.notify(command, plan.name if plan else "", runs)
    if any(run.state == schema.FAILED for run in runs):
        return Exit.RUNS_FAILED
    left = {run.run_id for run in runs if run.state not in schema.FINISHED}
    if left and plan is not None:
        from cppo_lab.sweep.claims import not_awaited

        left -= not_awaited(plan, uri)
    return Exit.NO if left else Exit.DONE


def logs(options: Namespace) -> int:
    """Print what a run has printed."""
    runs = runs_folder()
    run_id = run_by_beginning(runs, options.run)
    if options.json:
        if options.follow:
            raise UserError("--json with -f: the object is printed at once; omit one of them")
        return answer(options, {"run_id": run_id, **statuses.log_values(runs, run_id, options.all)})
    if not options.follow:
        statuses.print_logs(runs, run_id, options.all, sys.stdout)
        return Exit.DONE
    if options.all:
        raise UserError("--all with -f: only the newest attempt grows; omit one of them")
    statuses.follow_logs(
        runs, run_id, lambda: any(run.state in schema.ALIVE for run in _these([run_id])), sys.stdout
    )
    return Exit.DONE


def sync(options: Namespace) -> int:
    """Send what is on file and not in the tracking store."""
    from cppo_lab.tracking.services import Mirror, mirror_name
    from cppo_lab.tracking.upload import forget_lost, upload

    mirror = Mirror(name) if (name := mirror_name()) and not options.dry_run else None
    runs, uri = runs_folder(), address.known_store(address.tracking_uri())
    if options.json and options.watch:
        raise UserError("--json with --watch: the object is printed at once; omit one of them")
    if options.dry_run:
        names = [folder.name for folder in run_folders(runs, options.run) if unsent(folder, uri)]
        values = {"store": redacted(uri), "runs": names, "points": 0, "dry_run": True}
        answer(options, values, "\n".join(names) or None)
        if not options.json:
            say(f"{counted(len(names), 'run')} with metrics to upload to {redacted(uri)}")
        return Exit.DONE
    folders = run_folders(runs, options.run)  # an unknown prefix is refused now
    last_fault, first, away = "", True, False
    with contextlib.ExitStack() as stack:
        if mirror is not None:
            stack.callback(mirror.close)
        while True:
            was_away, away = away, True  # until the store has taken everything
            try:
                if first:
                    forget_lost(folders, uri)
                else:
                    folders = run_folders(runs, options.run)
                first = False
                open_before = [folder.name for folder in folders if options.json and unsent(folder, uri)]
                runs_sent, points = upload(folders, uri, counter("runs sent"))
                away = False
                values = {"runs": open_before, "points": points, "dry_run": False}
                what = f"{counted(points, 'point')} of {counted(runs_sent, 'run')}"
                line = f"{what} uploaded to {redacted(uri)}"
                is_news = runs_sent or was_away or not options.watch
                answer(options, {"store": redacted(uri), **values}, line if is_news else None)
                sys.stdout.flush()
                if mirror is not None:
                    mirror.update(folders)
                last_fault = ""
            except UserError as error:
                if not options.watch:
                    raise
                if str(error) != last_fault:  # an outage is said once, not every few seconds
                    say(f"cppo: {error}; trying again")
                last_fault = str(error)
            if not options.watch:
                return Exit.DONE
            time.sleep(SYNC_SECONDS)


def note(options: Namespace) -> int:
    """Add to the note and tags of a run, also while it trains; without anything to add, print them."""
    from cppo_lab.tracking.upload import upload

    added = dict(tag.partition("=")[::2] for tag in options.tag)
    if valueless := [tag for tag in options.tag if "=" not in tag]:
        raise UserError(f"--tag {valueless[0]}: must be KEY=VALUE")
    for key in added:
        # MLflow refuses keys that are no plain paths, and with them the run's upload for ever.
        if not re.fullmatch(r"(?=.{1,100}$)\w[\w. -]*(/\w[\w. -]*)*", key) or key.startswith(schema.OUR_TAGS):
            raise UserError(
                f"--tag {key}: a key has letters, digits and `.-_`, also as a path (a/b), and is none of `cppo.` and "
                "`mlflow.`"
            )
    run_id = run_by_beginning(runs_folder(), options.run)
    folder, uri = runs_folder() / run_id, address.known_store(address.tracking_uri())
    if newest_record(folder) is None:
        raise UserError(f"run {run_id} has no record here: note on it where it was trained")
    if added or any(options.words):
        # What a terminal of another encoding has sent is no text for a store.
        *values, text = (
            given.encode(errors="surrogateescape").decode(errors="backslashreplace")
            for given in (*added.values(), " ".join(options.words))
        )
        add_notes(folder, dict(zip(added, values, strict=True)), text)
        upload([folder], uri)
    given = notes(folder)
    text = given.pop(schema.TAG_NOTE, "")
    lines = filter(None, [text, *(f"{key}={value}" for key, value in given.items())])
    return answer(options, {"run_id": run_id, "note": text, "tags": given}, "\n".join(map(harmless, lines)))


def cancel(options: Namespace) -> int:
    """End runs, and take those that wait off their lists."""
    if bool(options.sweep) == bool(options.run):
        raise UserError("cppo cancel: name either a sweep, or runs with --run ID")
    runs = status_reader(_planned(options)[0])() if options.sweep else _these(options.run)
    chosen = [run for run in runs if run.state in ({schema.QUEUED} if options.queued else schema.ALIVE)]
    names = {run.run_id: f"{run.run_id} {run.title}" for run in runs}
    if options.dry_run:
        text = "would be cancelled"
        values = [{"run_id": run.run_id, "text": text, "done": False} for run in chosen]
        lines = [
            f"{names[run.run_id]}: {run.state}{f', {run.job}' if run.job else ''}: {text}" for run in chosen
        ]
        return answer(options, {"runs": values, "dry_run": True}, "\n".join(lines) if lines else None)
    done = queues.cancel(runs_folder(), [run.run_id for run in chosen], options.queued) if chosen else []
    lines = [f"{names[line.run_id]}: {line.text}" for line in done]
    lines.append(
        f"{sum(line.done for line in done)} of {len(runs)} runs cancelled" if done else "nothing to cancel"
    )
    answer(options, {"runs": [vars(line) for line in done], "dry_run": False}, "\n".join(lines))
    return Exit.DONE if all(line.done for line in done) else Exit.NO


def clean(options: Namespace) -> int:
    """Show what runs take on the disk, and free what is not needed any more."""
    from cppo_lab.runs.export import PARTS, remove, usage

    plan, uri = _planned(options)
    if options.code and plan:
        raise UserError("cppo clean --code: the code is of all sweeps: name none")
    runs, parts = runs_folder(), [part for part in PARTS if getattr(options, part)]
    folders = [runs / run.run_id for run in plan.runs] if plan else run_folders(runs, [])
    sweeps = defaultdict[str, Counter[str]](Counter)
    chosen, size = [], 0
    for folder in filter(Path.is_dir, folders):
        sizes, variants = usage(folder), parse_variants(read_status(folder).get("variants"))
        sweeps[next(iter(variants), "-")].update(sizes, runs=1)
        # The upload of a result looks for the result that it replaces.
        if (spare := sum(sizes[part] for part in parts)) and not unsent(folder, uri):
            chosen.append(folder)
            size += spare
    columns = ("disk", *PARTS)
    rows = [
        [name, str(sums["runs"]), *(f"{sums[key] / 1e9:.3f}" for key in columns)]
        for name, sums in sweeps.items()
    ]
    code = queues.spare_code(runs) if options.code else 0
    text = f"no run of {plan.name} has a folder here" if plan else f"there are no runs in {runs}"
    if rows:
        text = aligned(["sweep", "runs", *(f"{key} GB" for key in columns)], rows, width=width())
    of = [counted(len(chosen), "run")] * bool(chosen) + ["old code"] * bool(code)
    what = f"{(size + code) / 1e9:.3f} GB of {' and '.join(of)}"
    if (chosen or code) and not options.yes:
        if options.json or not sys.stdin.isatty():
            raise UserError(
                f"cppo clean would free {what}, and nobody can be asked here: repeat it with --yes"
            )
        print(text)
        question = f"Free {what} ({' and '.join([*parts, *['code'] * options.code])}) for good? [y/N] "
        try:
            agreed = input(question).strip().lower() in ("y", "yes")
        except EOFError:
            agreed = False
        if not agreed:
            return Exit.NO
    freed = sum(remove(folder, parts) for folder in chosen)
    freed += queues.spare_code(runs, remove=True) if code else 0
    return answer(
        options,
        {"sweeps": sweeps, "freed": freed},
        f"{freed / 1e9:.3f} GB freed" if parts or options.code else text,
    )


def retry(options: Namespace) -> int:
    """Train failed or finished runs of a sweep again."""
    from cppo_lab.cli.training import answer_launch, plan_states, planned, run_of, train
    from cppo_lab.sweep.launch import Launched, LaunchRequest

    if options.failed == bool(options.run):
        raise UserError("cppo retry: choose the runs with either --failed, or --run ID once or more")
    if options.failed and options.finished:
        raise UserError("cppo retry: --finished with --failed: name finished runs with --run ID")
    plan, uri = planned(options)
    states = plan_states(plan)
    if options.failed:
        chosen = {run_id for run_id, state in states.items() if state.state == schema.FAILED}
    else:
        chosen = {run_of(plan, beginning).run_id for beginning in options.run}
        for run_id in sorted(chosen):
            state = states[run_id].state
            if options.finished and state not in schema.FINISHED:
                raise UserError(f"--run {run_id} is {state}: --finished is for finished runs; remove it")
            if not options.finished and state in schema.FINISHED | {schema.RUNNING}:
                raise UserError(
                    f"--run {run_id} is {state}: only runs that are neither done nor running can be retried"
                    + "; --finished retrains finished ones" * (state in schema.FINISHED)
                )
    if not chosen:
        if options.json:
            answer_launch(plan, Launched(states), options)
        else:
            unfinished = any(state.state not in schema.FINISHED for state in states.values())
            how = f"; `cppo launch {typed(options)}` trains those that are not done" * unfinished
            print(f"no run of {plan.name} has failed{how}")
        return Exit.DONE
    runs = tuple(run for run in plan.runs if run.run_id in chosen)
    unfinished = any(states[i].state not in schema.FINISHED for i in states.keys() - chosen)
    request = LaunchRequest(
        retry=chosen, finished=chosen if options.finished else (), keep_going=options.keep_going
    )
    return train(replace(plan, runs=runs), uri, request, options, others_unfinished=unfinished)


def _planned(options: Namespace) -> "tuple[Plan | None, str]":
    """The runs of a sweep and their store; without a sweep None, and the store of the environment."""
    if options.sweep is None:  # an empty name, as of a shell's unset variable, is not every run
        return None, address.known_store(address.tracking_uri())
    from cppo_lab.cli.training import planned

    return planned(options)


def status_reader(plan: "Plan | None") -> Callable[[], list[RunStatus]]:
    """A function that reads the statuses of the runs of a plan, or of all known runs."""
    names = None if plan is None else {run.run_id: run.names for run in plan.runs}
    return lambda: run_statuses(runs_folder(), names)


def _these(beginnings: Sequence[str]) -> list[RunStatus]:
    """The known runs whose ids begin so."""
    runs = runs_folder()
    return run_statuses(runs, {folder.name: {} for folder in run_folders(runs, beginnings)})
