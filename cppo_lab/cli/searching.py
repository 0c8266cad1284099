"""`cppo tune`, and `cppo plan` for a search."""

import argparse
import shlex
from typing import TYPE_CHECKING

from cppo_lab import schema
from cppo_lab.cli.command import CommandParser, Exit, add_sweep, answer, load_any
from cppo_lab.errors import UserError
from cppo_lab.files import redacted, runs_folder
from cppo_lab.tracking import address

if TYPE_CHECKING:
    from cppo_lab.search.space import Tuning
    from cppo_lab.sweep.file import Search


def tune(options: argparse.Namespace) -> int:
    """Search for the best constants; go on where an earlier command, or another command, is."""
    from cppo_lab.errors import interrupt_on_termination
    from cppo_lab.search.space import resolve
    from cppo_lab.search.study import storage_url
    from cppo_lab.search.worker import tune as carry_out
    from cppo_lab.sweep.doctor import require_machine
    from cppo_lab.sweep.file import Search
    from cppo_lab.tracking.page import where_to_look

    declared = load_any(options)
    if not isinstance(declared, Search):
        raise UserError(
            f"{options.sweep} has no key `search`: it is not a search: cppo launch {options.sweep}"
        )
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
        print(f"The report: cppo report {shlex.join([options.sweep, *options.overrides, *study])}")
    return Exit.DONE if over else Exit.NO


def plan_search(search: "Search", options: argparse.Namespace) -> int:
    """Print the space of a search, what is done of it, and what one trial costs."""
    from cppo_lab.search.space import resolve
    from cppo_lab.search.study import storage_url

    tuning = resolve(search, options.overrides)
    return _outline(tuning, storage_url(), options, {"sweep": search.name, "core": tuning.core})


def _outline(tuning: "Tuning", url: str, options: argparse.Namespace, more: dict[str, object]) -> int:
    """What `tune` would go on with, as text or, with `more`, as JSON. Trains nothing."""
    from cppo_lab.search.results import counts, summary_text
    from cppo_lab.search.space import describe
    from cppo_lab.search.study import find_trials

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
    answer(options, {"search": values, **more})
    return Exit.DONE


def tune_arguments(command: CommandParser) -> None:
    command.set_defaults(command=tune)
    add_sweep(command)
    command.add_argument(
        "--storage",
        metavar="URL",
        help="where the study is stored: sqlite:///FILE.db, PATH.journal or postgresql://... (default: OPTUNA_STORAGE, "
        "or sqlite:///optuna.db in the working folder)",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="only show the search and its remaining trials"
    )
    command.add_argument("--study", metavar="NAME", help="name of the study (default: SEARCH-MODEL)")
    command.add_argument(
        "--trials", type=int, metavar="N", help="total number of trials; overrides the number in the file"
    )
