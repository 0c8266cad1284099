"""A search: its file and the command line, validated before anything runs; what the main sweep takes over from it."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, cast

from cppo_lab.errors import UserError, together
from cppo_lab.files import redacted
from cppo_lab.runs.tags import flatten
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.enumerate import LAUNCHING, core_of, with_core
from cppo_lab.sweep.file import (
    MAX_TRIALS,
    Choices,
    Parameter,
    Scalar,
    Search,
    Sweep,
    code_fault,
    load_sweep,
)
from cppo_lab.sweep.overrides import override_text, parse_override, quote

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CHOSEN = ("model", "seed", "core")  # chosen by separate keys


@dataclass(frozen=True)
class Tuning:
    """A validated search: its declaration with the command line applied, for a core and a model.

    `base` is the configuration at the lower bounds of the space, with the first seed.
    """

    search: Search
    study: str
    core: str
    model: str
    seeds: tuple[int, ...]
    trials: int
    space: Mapping[str, Parameter]
    fixed: tuple[str, ...]  # overrides of every run
    base: Composed = field(repr=False)

    @property
    def t_stop(self) -> int:
        """Training steps of a run."""
        return self.base.run.training.t_stop

    @property
    def every(self) -> int:
        """Training steps between two validations."""
        return self.base.run.validation.every

    def is_whole(self, key: str) -> bool:
        """Whether the values of a parameter are integers, according to its type in the configuration."""
        value: Any = self.base.run
        for name in key.split("."):
            value = getattr(value, name, None)
        return isinstance(value, int) and not isinstance(value, bool)

    def at(self, point: Mapping[str, Scalar], seed: int) -> Composed:
        """The configuration at a point of the space. Raises UserError if it is not valid."""
        return _at(self.fixed, point, seed)

    def definition(self) -> dict[str, Any]:
        """The definition of a search: a study continues only with an equal definition."""
        settings = flatten(self.base.run.model_dump(mode="json", exclude_none=True))
        return {
            "core": self.core,
            "seeds": list(self.seeds),
            "objectives": list(self.search.search.objectives),
            "parameters": self.parameters(),
            "settings": {
                key: value for key, value in settings.items() if key not in self.space and key != "seed"
            },
        }

    def parameters(self) -> dict[str, dict[str, Any]]:
        """The search space as plain values."""
        return {key: parameter.model_dump(mode="json") for key, parameter in self.space.items()}


def resolve(
    search: Search, overrides: Sequence[str] = (), study: str | None = None, trials: int | None = None
) -> Tuning:
    """Validate a search in full: names, bounds, and the configurations at the ends of every interval.

    Overrides `model=` and `seed=0,1` replace the file's choice; all others apply to every run.
    Raises UserError for all mistakes together, each naming the file, the key, the value and the remedy.
    """
    overrides = with_core(search.models, overrides)
    core, where = core_of(overrides), f"search {search.source}"
    if study is not None and not NAME.fullmatch(study):
        raise UserError(
            f"--study {study!r}: use letters, digits, `_`, `-` and `.`, beginning with a letter or digit"
        )
    if trials is not None and not 1 <= trials <= MAX_TRIALS:
        raise UserError(f"--trials {trials}: must be in [1, {MAX_TRIALS}]")
    faults = dict(_key_faults(search))
    space: dict[str, Parameter] = {}
    for key in search.search.parameters:
        try:
            parameter = search.parameter_of(key, core)
            if key not in faults:
                space[key] = parameter
        except UserError as error:
            faults.setdefault(key, str(error))
    model, seeds, others = _chosen(search, core, overrides, faults)
    given = {parse_override(text).key for text in others} | faults.keys()
    settings = [override_text(key, value) for key, value in search.settings.items() if key not in given]
    fixed = [f"model={quote(model)}"] * bool(model) + settings + others
    texts = {key: override_text(key, parameter.ends[0]) for key, parameter in space.items()}
    sound = _sound([*fixed, *texts.values()], seeds[0], where, faults)
    fixed = [text for text in fixed if text in sound]
    space = {key: parameter for key, parameter in space.items() if texts[key] in sound}
    base = _check_ends(space, fixed, seeds[0], where, faults)
    if faults or base is None:
        raise together(faults.values(), f"{where}: ")
    name = f"{search.name}-{model}" if study is None else study
    return Tuning(search, name, core, model, seeds, trials or search.search.trials, space, tuple(fixed), base)


def _chosen(
    search: Search, core: str, overrides: Sequence[str], faults: dict[str, str]
) -> tuple[str, tuple[int, ...], list[str]]:
    """The model, the seeds, and the remaining overrides."""
    model, seeds, others = "", search.seeds, []
    for given in map(parse_override, overrides):
        if given.right is None or given.sets(""):
            faults[given.text] = f"override {given.text!r} is not of the form key=value"
        elif given.sets("model") and re.fullmatch("[^,]+", given.right):
            model = given.right
        elif given.sets("model"):
            faults["model"] = f"override {given.text!r}: a search tunes for one model; name one of them"
        elif given.sets("seed") and re.fullmatch(r"\d+(,\d+)*", given.right):
            seeds = tuple(dict.fromkeys(map(int, given.names)))
        elif given.sets("seed"):
            faults[given.text] = f"override {given.text!r}: seeds are whole numbers: seed=0,1"
        elif given.key in search.search.parameters:
            where = f"search {search.source}"
            faults[given.text] = (
                f"override {given.text!r}: {where} tunes {given.key!r} itself; remove the override"
            )
        else:
            others.append(given.text)
    try:
        return model or search.model_of(core), seeds, others
    except UserError as error:
        faults["model"] = str(error)
        return "", seeds, others


def _key_faults(search: Search) -> Iterator[tuple[str, str]]:
    """The keys of a search that it must not set, as it does not declare how runs are started or tracked, and why."""
    where = f"search {search.source}"
    for key, values in search.search.parameters.items():
        if fault := code_fault(parse_override(f"{key}=0").key, values):
            yield key, f"{where}: search.parameters.{key}: {fault}"
        elif key in _CHOSEN or key.partition(".")[0] in (*LAUNCHING, "layout"):
            yield key, f"{where}: search.parameters.{key}: this key cannot be tuned; remove it"
    for key, value in search.settings.items():
        if fault := code_fault(parse_override(f"{key}=0").key, value):
            yield key, f"{where}: settings.{key}={value!r}: {fault}"
        elif key in _CHOSEN:
            remedy = f"use models and seeds, or {key}= on the command line"
            yield key, f"{where}: settings.{key}={value!r}: {remedy}"
        elif key.partition(".")[0] in LAUNCHING:
            yield key, f"{where}: settings.{key} belongs on the command line, not in a search file; remove it"


def _sound(texts: Sequence[str], seed: int, where: str, faults: dict[str, str]) -> list[str]:
    """The overrides that compose together; each of the others is a fault. What needs another override waits for it."""

    def fault(chosen: Sequence[str]) -> str:
        try:
            compose([*chosen, f"seed={seed}"])
        except UserError as error:
            return f"{where}: {error}"
        return ""

    if not fault(texts):
        return [*texts]
    core, model = ([text for text in texts if parse_override(text).sets(key)] for key in ("core", "model"))
    sound = [*core, *model]
    if wrong := fault(sound):
        faults["model"] = wrong
        sound = core
        if fault(sound):
            return []
    waiting = [text for text in texts if text not in (*core, *model)]
    # Two may need each other.
    while fitting := next(
        (few for size in (1, 2) for few in combinations(waiting, size) if not fault([*sound, *few])), ()
    ):
        sound += fitting
        waiting = [text for text in waiting if text not in fitting]
    faults |= {text: fault([*sound, text]) for text in waiting}
    return sound


def _check_ends(
    space: Mapping[str, Parameter], fixed: Sequence[str], seed: int, where: str, faults: dict[str, str]
) -> Composed | None:
    """Compose the low ends, each other end and choice by itself, and the high ends together; return the first."""
    lows = {key: parameter.ends[0] for key, parameter in space.items()}

    def at(place: str, point: Mapping[str, Scalar]) -> Composed | None:
        try:
            return _at(fixed, {**lows, **point}, seed)
        except UserError as error:
            faults.setdefault(place, f"{where}{place}: {error}")
            return None

    if (base := at("", {})) is None:
        return None
    before = len(faults)
    for key, parameter in space.items():
        seen = {base.run.run_id}
        for end in parameter.ends[1:]:
            place = f": search.parameters.{key} at {end!r}"
            if (composed := at(place, {key: end})) is None:
                continue
            run = composed.run
            if run.run_id in seen:
                faults[key] = f"{where}{place}: the runs do not depend on {key!r}; remove it"
            elif (run.training.t_stop, run.validation) != (base.run.training.t_stop, base.run.validation):
                faults[key] = (
                    f"{where}{place}: trials would differ in training.t_stop or validation, and their scores could not "
                    f"be compared; remove {key!r}"
                )
            seen.add(run.run_id)
    if len(faults) == before:
        highs = {key: parameter.ends[-1] for key, parameter in space.items()}
        at(": search.parameters, all at their high ends", highs)
    return base


def _at(fixed: Sequence[str], point: Mapping[str, Scalar], seed: int) -> Composed:
    return compose([*fixed, *(override_text(key, value) for key, value in point.items()), f"seed={seed}"])


def tidy(value: Scalar) -> Scalar:
    """A drawn number without binary rounding noise: 0.65 for 0.6500000000000001."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def describe(parameter: Parameter) -> str:
    """A parameter's interval or choices, for display."""
    if isinstance(parameter, Choices):
        return "one of " + ", ".join(quote(value) for value in parameter.choices)
    steps = f" in steps of {parameter.step}" if parameter.step is not None else ""
    return f"{parameter.low} to {parameter.high}" + (", logarithmic" if parameter.log else steps)


def require_equal(tuning: Tuning, definition: dict[str, Any] | None, url: str) -> None:
    """Raises UserError if the study at `url` was created with a different `definition`."""
    if definition is None:
        return
    differences = []
    for section, value in tuning.definition().items():
        was = definition.get(section)
        if not (isinstance(value, dict) and isinstance(was, dict)):
            value, was = {section: value}, {section: was}
        prefix = "search.parameters." if section == "parameters" else ""
        for key in sorted(was.keys() | value.keys()):
            if was.get(key) != value.get(key):
                differences.append(f"{prefix}{key} was {_shown(was.get(key))}, is {_shown(value.get(key))}")
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UserError(
            f"study {tuning.study!r} in {redacted(url)} was made with another definition: {differences[0]}{more}: give "
            "this search a study of its own with --study NAME, or restore what it was"
        )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        parts = [f"{key}: {part}" for key, part in value.items() if part not in (None, False)]
        return "{" + ", ".join(parts) + "}"
    return "not there" if value is None else str(value)


def main_overrides(tuning: Tuning) -> tuple[str, ...] | None:
    """What makes `cppo launch main` train the runs of the search, all but the tuned keys, the core and the seeds; words
    for a shell. None if the main sweep has no variant of the search's rule.
    """
    main, rule = cast(Sweep, load_sweep("main")), tuning.base.run.rule.name
    if "rule" in tuning.space or rule not in main.variants:
        return None
    settings = [
        text
        for text in tuning.fixed
        if parse_override(text).key not in ("rule", "model", "core")
        and parse_override(text).key.partition(".")[0] not in LAUNCHING
    ]
    return tuple(map(shlex.quote, (f"variant={rule}", f"model={tuning.model}", *settings)))
