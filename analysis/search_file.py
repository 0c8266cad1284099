"""Finds `search.json` in a search's MLflow run, validates it field by field, and parses it into a `SearchResult`."""

import re
from itertools import pairwise
from typing import Any

from cppo_lab.analysis.artifacts import SEARCH_FILE, read_search_file
from cppo_lab.analysis.fields import Fields, boolean, count, number, text
from cppo_lab.analysis.reader import read_studies
from cppo_lab.analysis.search import (
    COMPLETE,
    OBJECTIVES,
    STATES,
    TOLERANCE,
    SearchResult,
    Space,
    TrialResult,
    Value,
    complete_trials,
    front_of,
)
from cppo_lab.core_records import core_names
from cppo_lab.errors import UserError

FORMAT = 1
_KEY = re.compile(r"[A-Za-z_][\w.]*")


def read_search(uri: str, experiment: str, study: str) -> SearchResult:
    """The latest state of `study` in `experiment` of the store at `uri`.

    Raises UserError if the store or the experiment cannot be read, if there is no such study (the message lists the
    existing ones), if it has no state yet, or if the file is malformed.
    """
    studies = read_studies(uri, experiment)
    if study not in studies:
        known = ", ".join(studies) or "none"
        raise UserError(
            f"experiment {experiment!r} has no search {study!r}: it has {known}; run `cppo tune SEARCH` first, "
            "or name one of these with --study"
        )
    found = read_search_file(uri, studies[study])
    if found is None:
        raise UserError(
            f"search {study!r} has no {SEARCH_FILE} yet: it is written when the first trial ends; "
            "wait for it, or start the search again with `cppo tune`"
        )
    mlflow_id, content = found
    remedy = f"`cppo tune` rewrites it after each trial; delete MLflow run {mlflow_id} if that does not help"
    result = parse_search(
        Fields.parse(content, f"{SEARCH_FILE} of MLflow run {mlflow_id}", remedy), mlflow_id
    )
    if result.study != study:
        raise UserError(f"{SEARCH_FILE} of MLflow run {mlflow_id} is of study {result.study!r}: {remedy}")
    return result


def parse_search(fields: Fields, mlflow_id: str) -> SearchResult:
    """The search that `fields` describe. Raises UserError if they are invalid."""
    if fields.one("format", count, "count") != FORMAT:
        raise fields.bad(
            f"has format {fields.values['format']}, not {FORMAT}: it was written by another version of this code"
        )
    objectives = _distinct(fields, "objectives", _objective, f"objective ({', '.join(OBJECTIVES)})")
    spaces = tuple(_space(fields.inner("parameters"), name) for name in _names(fields, "parameters"))
    if not spaces:
        raise fields.bad("has no parameter")
    seeds = _distinct(fields, "seeds", count, "seed")
    t_stop = fields.one("t_stop", count, "count")
    listed = fields.listed("trials", lambda item: item if isinstance(item, dict) else None, "trial")
    trials = tuple(
        _trial(Fields(item, f"{fields.what}, trial {place},", fields.remedy), spaces, len(objectives))
        for place, item in enumerate(listed)
    )
    if len({trial.number for trial in trials}) < len(trials):
        raise fields.bad("has two trials of one number")
    if any(step > len(seeds) * t_stop for trial in trials for step, _ in trial.curve):
        raise fields.bad(f"has a curve that goes beyond {len(seeds)} seeds of {t_stop} steps")
    names = {space.name for space in spaces}
    importances = {
        objective: _importances(fields.inner("importances"), objective, names)
        for objective in _names(fields, "importances")
    }
    if not set(importances) <= set(objectives):
        raise fields.bad(f"has importances of other objectives than {', '.join(objectives)}")
    result = SearchResult(
        mlflow_id=mlflow_id,
        **{key: fields.one(key, _line, "text") for key in ("name", "study", "title", "question", "model")},
        core=fields.one("core", lambda value: value if value in core_names() else None, "core"),
        seeds=seeds,
        sampler=fields.one("sampler", _line, "text"),
        pruner=fields.one("pruner", _line, "text"),
        objectives=objectives,
        parameters=spaces,
        t_stop=t_stop,
        trials=tuple(sorted(trials, key=lambda trial: trial.number)),
        importances=importances,
        best=fields.listed("best", count, "trial number"),
    )
    _require_best(fields, result)
    return result


def _require_best(fields: Fields, result: SearchResult) -> None:
    """Raise UserError unless the best trials that the file names are the best of its trials; among ties it may name
    any.
    """
    front = set(front_of(result))
    values = {trial.number: trial.values for trial in complete_trials(result)}
    named = set(result.best)
    if not named <= front or {values[number] for number in named} != {values[number] for number in front}:
        raise fields.bad(
            f"has best={list(result.best)}, but by the values of its trials that is {sorted(front)}"
        )


def _distinct(fields: Fields, key: str, check: Any, kind: str) -> tuple[Any, ...]:
    """A list of one or more distinct values."""
    values = fields.listed(key, check, kind)
    if not values or len(set(values)) < len(values):
        raise fields.bad(f"has no list of different values as {key!r}")
    return values


def _names(fields: Fields, key: str) -> tuple[str, ...]:
    names = tuple(fields.inner(key).values)
    wrong = next((name for name in names if not _KEY.fullmatch(name)), None)
    if wrong is not None:
        raise fields.bad(f"has {key} of {wrong!r:.60}, which is no configuration key")
    return names


def _space(fields: Fields, name: str) -> Space:
    one = fields.inner(name)
    if "choices" in one.values:
        if not isinstance(one.values["choices"], list) or not one.values["choices"]:
            raise one.bad("has no list of choices")
        return Space(name, 0.0, 0.0, False, None, tuple(_value(one, item) for item in one.values["choices"]))
    low, high = (one.one(key, number, "number") for key in ("low", "high"))
    log = one.one("log", boolean, "true or false")
    if low > high or (log and low <= 0):
        raise one.bad(f"goes from {low:g} to {high:g}{' on a logarithmic scale' if log else ''}")
    return Space(name, low, high, log, one.optional("step"), ())


def _trial(fields: Fields, spaces: tuple[Space, ...], objectives: int) -> TrialResult:
    state = fields.one(
        "state", lambda value: value if value in STATES else None, f"state ({', '.join(STATES)})"
    )
    given = fields.inner("params")
    params = {name: _value(given, value) for name, value in given.values.items()}
    known = {space.name: space for space in spaces}
    for name, value in params.items():
        if name not in known or not known[name].holds(value):
            raise fields.bad(f"has {name}={value!r:.60}, which the search cannot have chosen")
    if state == COMPLETE and len(params) < len(spaces):
        raise fields.bad(f"is complete and has {len(params)} of {len(spaces)} parameters")
    values = None
    if fields.values.get("values") is not None:
        values = fields.listed("values", _fraction, "fraction")
    if state == COMPLETE and (values is None or len(values) != objectives):
        raise fields.bad(f"is complete and has {len(values or ())} values for {objectives} objectives")
    curve = fields.listed("curve", _point, "pair of a step and a finite score")
    if any(later[0] < earlier[0] for earlier, later in pairwise(curve)):
        raise fields.bad("has a curve whose steps go back")
    return TrialResult(
        number=fields.one("number", count, "count"),
        state=state,
        params=params,
        values=values if state == COMPLETE else None,
        curve=curve,
        run_ids=fields.listed("run_ids", _line, "text"),
        mlflow_id=_line(fields.values.get("mlflow_id")) or "",
        reason=_line(fields.values.get("reason")) or "",
        seconds=fields.optional("seconds"),
    )


def _importances(fields: Fields, objective: str, known: set[str]) -> dict[str, float]:
    one = fields.inner(objective)
    if not set(one.values) <= known:
        raise one.bad(f"names other parameters than {', '.join(sorted(known))}")
    return {name: one.one(name, number, "number") for name in one.values}


def _line(value: Any) -> str | None:
    """Text on one line, without characters that a page or a drawing cannot hold."""
    found = text(value)
    if found is None:
        return None
    return "".join(symbol if symbol.isprintable() else "\ufffd" for symbol in " ".join(found.split()))


def _value(fields: Fields, value: Any) -> Value:
    """A scalar. Integers stay integers, so that an override is written as it was chosen."""
    if value is None or isinstance(value, bool):
        return value
    found = _line(value) if isinstance(value, str) else (value if number(value) is not None else None)
    if found is None:
        raise fields.bad(f"has {value!r:.60}, which is not a number, text, true, false or null")
    return found


def _objective(value: Any) -> str | None:
    return value if value in OBJECTIVES else None


def _fraction(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and -TOLERANCE <= found <= 1 + TOLERANCE else None


def _point(value: Any) -> tuple[int, float] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    step, score = count(value[0]), number(value[1])
    return None if step is None or score is None else (step, score)
