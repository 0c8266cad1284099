"""Builds a search from its file and the command line; everything is validated before anything runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cppo_lab.errors import UserError
from cppo_lab.runs.tags import flatten
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.grid import core_of
from cppo_lab.sweep.overrides import quote
from cppo_lab.sweep.rule_files import PATH_REMEDY, RULE_PATH
from cppo_lab.sweep.search.declare import MAX_TRIALS, Choices, Interval, Parameter, Search

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CHOSEN = ("model", "seed", "core")  # chosen by separate keys
ELSEWHERE = ("launcher", "tracking", "paths")  # how runs are started and tracked


@dataclass(frozen=True)
class Tuning:
    """A validated search: its declaration with the command line applied, for one core and one model.

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
        """Training steps of one run."""
        return self.base.run.training.t_stop

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
        """The definition of a search: a study continues only with an equal one."""
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
        return {key: one.model_dump(mode="json") for key, one in self.space.items()}


def resolve(
    search: Search, overrides: Sequence[str] = (), study: str | None = None, trials: int | None = None
) -> Tuning:
    """Validate a search in full: names, bounds, and the configurations at the ends of every interval.

    Overrides `model=` and `seed=0,1` replace the file's choice; all others apply to every run.
    Raises UserError naming the file, the key, the value and the remedy.
    """
    core = core_of(overrides)
    space = search.parameters_of(core)
    model, seeds, rest = _chosen(search, core, overrides)
    name = f"{search.name}-{model}" if study is None else study
    if not NAME.fullmatch(name):
        raise UserError(
            f"--study {name!r}: use letters, digits, `_`, `-` and `.`, beginning with a letter or digit"
        )
    if trials is not None and not 1 <= trials <= MAX_TRIALS:
        raise UserError(f"--trials {trials}: must be in [1, {MAX_TRIALS}]")
    _check_keys(search, space, rest)
    given = {_key(text) for text in rest}
    settings = [f"{key}={quote(value)}" for key, value in search.settings.items() if key not in given]
    fixed = (f"model={quote(model)}", *settings, *rest)
    base = _check_ends(search, space, fixed, seeds[0])
    return Tuning(search, name, core, model, seeds, trials or search.search.trials, space, fixed, base)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _chosen(search: Search, core: str, overrides: Sequence[str]) -> tuple[str, tuple[int, ...], list[str]]:
    """The model, the seeds, and the remaining overrides."""
    model, seeds, rest = "", search.seeds, []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"override {text!r} is not of the form key=value")
        if key == "model":
            model = value
        elif key == "seed":
            if not re.fullmatch(r"\d+(,\d+)*", value):
                raise UserError(f"override {text!r}: seeds are whole numbers: seed=0,1")
            seeds = tuple(dict.fromkeys(int(part) for part in value.split(",")))
        else:
            rest.append(text)
    if "," in model:
        raise UserError(f"override model={model!r}: a search tunes for one model; name one of them")
    return model or search.model_of(core), seeds, rest


def _check_keys(search: Search, space: Mapping[str, Parameter], rest: Sequence[str]) -> None:
    """Check that each key has one source, and that a search does not declare how runs are started or tracked."""
    where = f"search {search.source}"
    if RULE_PATH in search.settings:
        raise UserError(f"{where}: settings.{RULE_PATH}={search.settings[RULE_PATH]!r}: {PATH_REMEDY}")
    for key in space:
        if key == RULE_PATH:
            raise UserError(f"{where}: search.parameters.{key}: {PATH_REMEDY}")
        if key in _CHOSEN or key.partition(".")[0] in (*ELSEWHERE, "layout"):
            raise UserError(f"{where}: search.parameters.{key}: this key cannot be tuned; remove it")
    for key in search.settings:
        if key in _CHOSEN:
            raise UserError(
                f"{where}: settings.{key}={search.settings[key]!r}: use models and seeds, or {key}= on the command line"
            )
        if key.partition(".")[0] in ELSEWHERE:
            raise UserError(
                f"{where}: settings.{key} belongs on the command line, not in a search file; remove it"
            )
    for text in rest:
        if _key(text) in space:
            raise UserError(f"override {text!r}: {where} tunes {_key(text)!r} itself; remove the override")


def _check_ends(search: Search, space: Mapping[str, Parameter], fixed: Sequence[str], seed: int) -> Composed:
    """Compose the low ends, each other end and choice by itself, and the high ends together; return the first."""
    where = f"search {search.source}"
    lows = {key: one.ends[0] for key, one in space.items()}
    try:
        base = _at(fixed, lows, seed)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    for key, one in space.items():
        seen = {base.run.run_id}
        for end in one.ends[1:]:
            place = f"{where}: search.parameters.{key} at {end!r}"
            try:
                run = _at(fixed, {**lows, key: end}, seed).run
            except UserError as error:
                raise UserError(f"{place}: {error}") from None
            if run.run_id in seen:
                raise UserError(f"{place}: the runs do not depend on {key!r}; remove it")
            seen.add(run.run_id)
            if (run.training.t_stop, run.validation) != (base.run.training.t_stop, base.run.validation):
                raise UserError(
                    f"{place}: trials would differ in training.t_stop or validation, and their scores could not be "
                    f"compared; remove {key!r}"
                )
    try:
        _at(fixed, {key: one.ends[-1] for key, one in space.items()}, seed)
    except UserError as error:
        raise UserError(f"{where}: search.parameters, all at their high ends: {error}") from None
    return base


def _at(fixed: Sequence[str], point: Mapping[str, Scalar], seed: int) -> Composed:
    texts = [f"{key}={quote(value)}" for key, value in point.items()]
    return compose([*fixed, *texts, f"seed={seed}"])


def tidy(value: Scalar) -> Scalar:
    """A drawn number without binary rounding noise: 0.65 for 0.6500000000000001."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def describe(parameter: Parameter) -> str:
    """A parameter's interval or choices, for display."""
    if isinstance(parameter, Choices):
        return "one of " + ", ".join(quote(value) for value in parameter.choices)
    return f"{parameter.low} to {parameter.high}" + _scale(parameter)


def _scale(interval: Interval) -> str:
    if interval.log:
        return ", logarithmic"
    return f" in steps of {interval.step}" if interval.step is not None else ""
