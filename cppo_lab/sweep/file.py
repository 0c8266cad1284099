"""Sweep files: a YAML file per table, figure panel or search, which declares what is compared, not how it is run.

The types of sweeps, studies and searches, of hypotheses (claims, how each is tested, and the seeds that test it, stated
before the runs), and of rule files of other packages, `rule/<name>.yaml` next to a sweep file as in conf/rule.
A file is untrusted: it has values, and must not name code. A rule's location comes from an entry point of an installed
package, CPPO_RULES, or the command line (`rule.path`).
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from cppo_lab import schema
from cppo_lab.core_records import core_if_installed, core_names, cores_that
from cppo_lab.errors import ALSO, UserError, nearest, unknown
from cppo_lab.rules import ENTRY_POINT, GROUP, RULES, VARIABLE, from_environment
from cppo_lab.runs.folder import COMPLETE_ID
from cppo_lab.runs.tags import dotted
from cppo_lab.spec import Count, Spec
from cppo_lab.spec.job import Features, GpuType, Hours, Memory, Word
from cppo_lab.spec.parse import parse
from cppo_lab.spec.run import VERL, Name, Positive, RuleSpec, Seed
from cppo_lab.sweep.groups import add_rule, groups, shipped
from cppo_lab.sweep.source import SHIPPED, mapping, read_text

Scalar = str | int | float | bool | None
ANY_CORE = "any"  # key of a list for all trainer cores


def _feed(value: str) -> str:
    if not re.fullmatch(r"(Table|Figure) [1-9][0-9]*", value):
        raise ValueError("must be a table or figure of the paper, such as Table 1 or Figure 4")
    return value


Feed = Annotated[str, AfterValidator(_feed)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
Identifier = Annotated[str, Field(pattern=_NAME)]


class Declared(Spec):
    """The fields of every kind of sweep file."""

    name: Identifier
    title: str
    question: str = ""
    feeds: tuple[Feed, ...] = ()  # tables and figures of the paper
    _source: str = PrivateAttr("")

    @property
    def source(self) -> str:
        """Its file, or its name if it is shipped with the product, for messages."""
        return self._source or self.name

    def _of(self, where: str, by_core: Mapping[str, Any], core: str) -> Any:
        """What a key at `where` has for a core. Raises UserError if it has nothing."""
        values = by_core.get(core) or by_core.get(ANY_CORE)
        if values is None:
            kind = type(self).__name__.lower()
            raise UserError(
                f"{kind} {self.source} has no {where} for core={core} (valid: {', '.join(by_core)}): "
                f"use core={next(iter(by_core))}"
            )
        return values


Names = Annotated[tuple[str, ...], Field(min_length=1)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1)]
ERRORS = ("error", "error_slope")  # outcomes of a core that computes the surrogate's error
MOST_LISTED = 4  # changes of a statement that are listed singly


class Hypothesis(Spec):
    """One claim about the variants of a sweep.

    Each of `better` is above each of `than`; with `within` (points) they differ by less than that instead. `outcome` is
    the deciding score: final (mean of the last part of the window), area, best or corrected; or, on the exact core,
    error (ratio of the surrogate's mean errors at equal movement, averaged over the horizons) or error_slope (the
    change of that ratio when the horizon is ten times as long), for which lower is better. `smallest` (points; for an
    error, percent): an advantage below it counts as none. `models`: whether the mean over the models is tested once, or
    each model separately, or (trend) the growth of the advantage per doubling of the response length, the slope over
    models that differ in it; `smallest` is then in points per doubling. `only`: a subset of the models, for outcomes
    that are errors. `after`: the hypothesis that has to be supported first. Only runs with `test_seeds` test it;
    `selection_seeds` are those with which settings were selected. `sequential`: it is judged after each test seed, in
    their order, so its study may stop when it is decided.
    """

    claim: Annotated[str, Field(min_length=1, max_length=300)]
    better: Names
    than: Names
    outcome: Literal["final", "area", "best", "corrected", "error", "error_slope"] = "final"
    models: Literal["mean", "each", "trend"] = "each"
    only: Names | None = None
    smallest: Positive = 1.0
    within: Positive | None = None
    after: Name | None = None
    test_seeds: Seeds
    selection_seeds: tuple[Seed, ...] = ()
    sequential: Literal[True] | None = None

    def contradictions(self) -> Iterator[str]:
        """What is wrong with it, whatever the sweep has."""
        if both := sorted(set(self.better) & set(self.than)):
            yield f"{both[0]!r} is in `better` and in `than`: remove it from one"
        if seeds := sorted(set(self.test_seeds) & set(self.selection_seeds)):
            yield f"seed {seeds[0]} is in test_seeds and in selection_seeds: a seed used for selection cannot test"
        for name, values in (("better", self.better), ("than", self.than), ("test_seeds", self.test_seeds)):
            if twice := [value for value in values if values.count(value) > 1]:
                yield f"{name}: {twice[0]!r} stands there twice: remove one"
        of_errors, is_trend = self.outcome in ERRORS, self.models == "trend"
        if self.only is not None and not of_errors:
            yield f"only={list(self.only)} with outcome={self.outcome!r}: it is for {' and '.join(ERRORS)}"
        if is_trend and (self.within is not None or of_errors):
            yield (
                "models=trend is for scores, without `within`"
                + ": outcome=error_slope is the trend of an error" * of_errors
            )
        if self.sequential and (is_trend or of_errors):
            kind = "models=trend" if is_trend else f"outcome={self.outcome!r}"
            yield f"sequential with {kind}: it is for scores, on each model or in their mean"
        if self.sequential and len(self.test_seeds) <= schema.FIRST_LOOK:
            count = f"{len(self.test_seeds)} test_seeds"
            yield f"sequential: {count} leave nothing to stop; name more than {schema.FIRST_LOOK}"
        largest = max(self.smallest, self.within or 0.0)
        if of_errors and largest >= 100:
            yield f"smallest and within are percent of an error for outcome={self.outcome!r}: below 100"
        elif largest > 100:
            yield "smallest and within are points of a score (0 to 100): at most 100"

    @property
    def variants(self) -> tuple[str, ...]:
        """All variants that are compared."""
        return (*self.better, *self.than)


Pairing = Literal["seed", "none"]


def differences(old: str, new: str) -> tuple[str, ...]:
    """What differs between two statements, as `hypotheses.above.smallest: 2.0 -> 1.0`.

    At most MOST_LISTED parts, and a count of the others. A text that is no JSON object has no parts.
    """
    before, after = _parts(old), _parts(new)
    changes = [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    more = len(changes) - MOST_LISTED
    return (*changes[:MOST_LISTED], *([f"{more} more"] if more > 0 else []))


def _parts(text: str) -> dict[str, str]:
    """Dotted key -> value of everything in a JSON object; a list is a value."""
    try:
        values = json.loads(text)
        parts = dotted(values, null=True) if isinstance(values, dict) else {}
    except (ValueError, RecursionError):
        return {}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in parts.items()}


def is_of(label: str, variants: Iterable[str]) -> bool:
    """Whether a label begins with the name of a variant of the file: with axes, their values come after it, as in
    `cppo delta=0.1`, and are all of it where the variant has no name.
    """
    return any(f"{label} ".startswith(f"{name} ".lstrip()) for name in variants)


def _of_its_sweep(key: str, hypotheses: Mapping[str, Hypothesis], info: ValidationInfo) -> Iterator[str]:
    """Variants, models or test seeds that the sweep does not have, an outcome that its core does not compute, a trend
    over fewer than three models, or an `after` that names no hypothesis, or leads back to it. What is wrong in the
    sweep itself is not looked at.
    """
    hypothesis = hypotheses[key]
    models, variants = info.data.get("models"), info.data.get("variants")
    if models and hypothesis.models == "trend" and max(map(len, models.values())) < 3:
        yield (
            "models=trend needs three models or more, of different response lengths: two do not show how much leads "
            "scatter around a line"
        )
    if models and hypothesis.outcome in ERRORS:
        valid = [name for names in models.values() for name in names]
        if not all(core_if_installed(core).computes_error for core in models):
            computing = cores_that("computes_error")
            yield (
                f"outcome={hypothesis.outcome!r} is computed by core={' or '.join(computing)} alone: name the models "
                f"as `models: {{{computing[0]}: [...]}}`"
            )
        else:
            for name in hypothesis.only or ():
                if name not in valid:
                    yield f"model {name!r} is not in models (valid: {', '.join(valid)})"
    for name in hypothesis.variants:
        if variants is not None and not is_of(name, variants):
            yield f"variant {name!r} is not in variants (valid: {', '.join(variants)})"
    axes = info.data.get("axes")
    if axes is not None and variants:
        seeds = [seed for values in axes.get("seed", {}).values() for seed in values]
        seeds += [keys["seed"] for keys in variants.values() if "seed" in keys]
        seeds = seeds or [0]  # of conf/config.yaml
        if missing := [seed for seed in hypothesis.test_seeds if seed not in seeds]:
            yield (
                f"test_seeds: no run has seed {', '.join(map(str, missing[:5]))}: name seeds of the sweep "
                f"({', '.join(map(str, seeds[:10]))}{', ...' * (len(seeds) > 10)}), or extend axes.seed"
            )
    seen, before = {key}, hypothesis.after
    while before is not None:
        if before not in hypotheses:
            yield f"after={before!r} is no hypothesis (valid: {', '.join(hypotheses)})"
        elif (hypotheses[before].outcome in ERRORS) != (hypothesis.outcome in ERRORS):
            yield f"after={before!r}: an error and a score do not wait for each other"
        elif before in seen:
            yield f"after={hypothesis.after!r} leads back to it: name one that comes before"
        else:
            seen.add(before)
            before = hypotheses[before].after
            continue
        break


_FORM = TypeAdapter(dict[Name, Hypothesis])


def _readable(value: Any) -> tuple[dict[str, Hypothesis], list[Any]]:
    """Hypotheses without those of their values that are of a wrong form, and pydantic's faults of these."""
    try:
        return _FORM.validate_json(json.dumps(value)), []
    except ValidationError as error:
        faults = error.errors()
    wrong = {fault["loc"][:2] for fault in faults}
    hypotheses = {
        key: Hypothesis.model_construct(
            **{
                **dict.fromkeys(("better", "than", "test_seeds"), ()),
                **{name: part for name, part in claim.items() if (key, name) not in wrong},
            }
        )
        for key, entry in (value.items() if isinstance(value, dict) else ())
        for claim in [entry if isinstance(entry, dict) else {}]
    }
    return hypotheses, faults


def _checked(value: Any, info: ValidationInfo) -> dict[str, Hypothesis]:
    """The hypotheses. Raises ValidationError for all that is wrong with them, of their form or not."""
    hypotheses, faults = _readable(value)
    for key, hypothesis in hypotheses.items():
        if texts := [*hypothesis.contradictions(), *_of_its_sweep(key, hypotheses, info)]:
            error = {"error": ValueError(ALSO.join(texts))}
            faults.append({"type": "value_error", "loc": (key,), "input": value[key], "ctx": error})
    if faults:
        faults.sort(key=lambda fault: [*value].index(fault["loc"][0]) if fault["loc"] else 0)
        raise ValidationError.from_exception_data("hypotheses", faults)
    return hypotheses


Hypotheses = Annotated[dict[Name, Hypothesis], PlainValidator(_checked)]


RULE_FOLDER = "rule"
RULE_PATH = "rule.path"
REWARD, REWARDS = "data.reward", "CPPO_REWARDS"
REWARD_REMEDY = (
    f"name the function as package.module:function on the command line, or in {REWARDS} and here by its name alone; a "
    "file does not say what is imported"
)
CONSTANT = re.compile(
    r"\$\{(trust_region|recipe)\.[a-z][a-z0-9_]*\}"
)  # a reference to the run's model or recipe
# Keys of a file that also sets other groups of its method.
WHOLE = ("defaults", "rule", "advantage", "training")
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
PATH_REMEDY = (
    f"a file does not say what is imported: install the rule's package with an entry point in {GROUP!r}, or name it on "
    f"the command line (rule.path=package.module:function) or in {VARIABLE}"
)


def code_fault(key: str, value: object) -> str:
    """What is wrong with a key of a file, without a sign, and its value: they would name code; empty: nothing."""
    if key == RULE_PATH:
        return PATH_REMEDY
    return REWARD_REMEDY if key == REWARD and re.search(r"\w:\w", str(value)) else ""


def read_rules(sweep: Path) -> None:
    """Read the rules next to a sweep file.

    Raises UserError for an invalid rule file, or a name that another rule already has.
    """
    folder = sweep.parent / RULE_FOLDER
    if not folder.is_dir():
        return
    for file in sorted(folder.glob("*.yaml")):
        add_rule(file.stem, _read(file), str(file))


def _read(file: Path) -> dict[str, Any]:
    """The content of a rule file, in the form that Hydra needs."""
    name = file.stem
    if not NAME.fullmatch(name):
        raise UserError(f"rule file {file}: its name must be lower-case letters, digits and _")
    if name in shipped()["rule"]:
        raise UserError(f"rule file {file}: rule {name!r} comes with the product: give yours another name")
    try:
        values = mapping(read_text(file, str(file)), str(file), CONSTANT)
    except UserError as error:
        raise UserError(re.sub("^sweep (file )?", "rule file ", str(error))) from None
    whole = isinstance(values.get("rule"), dict)
    rule = values["rule"] if whole else values
    if wrong := next((key for key in values if whole and key not in WHOLE), None):
        raise UserError(f"rule file {file}: {unknown('key', wrong, WHOLE)}")
    defaults = values.get("defaults", []) if whole else []
    for entry in defaults if isinstance(defaults, list) else [defaults]:  # the divergence and nothing else
        if not (isinstance(entry, dict) and list(entry) == ["override /divergence"]):
            raise UserError(f"rule file {file}: defaults={entry!r} must be `- override /divergence: OPTION`")
        if (option := entry["override /divergence"]) not in groups()["divergence"]:
            raise UserError(f"rule file {file}: {unknown('divergence', option, groups()['divergence'])}")
    if not isinstance(rule.get("name"), str):
        raise UserError(
            f"rule file {file}: name={rule.get('name')!r} must be the rule's name: add name: {name}"
        )
    if rule.get("path") is not None:
        raise UserError(f"rule file {file}: rule.path={rule['path']!r}: {PATH_REMEDY}")
    if rule["name"] not in RULES and not rule["name"].startswith(VERL):
        if wrong := next((key for key in rule if key not in RuleSpec.model_fields), None):
            raise UserError(
                f"rule file {file}: {wrong}: no built-in rule has such a constant: put it below `options`"
            )
        # Code of another package, not a built-in rule with other constants.
        rule["path"] = from_environment(rule["name"]) or ENTRY_POINT
    return {**values, "rule": rule} if whole else {"rule": rule}


MAX_TRIALS = 100_000  # a study creates all of them in advance
Objective = Literal["final_score", "best_score", "mean_score", "stability"]


def _divides(step: float, low: float, high: float) -> bool:
    """Whether `step` divides `high` - `low` exactly in decimal arithmetic."""
    try:
        return step > 0 and not (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step))
    except InvalidOperation:  # nan, or more steps than can be counted
        return False


class Interval(Spec):
    """Numbers from `low` to `high`, both included; on a logarithmic scale, or in steps, or neither."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    def faults(self) -> Iterator[str]:
        low, high, step = self.low, self.high, self.step
        if low >= high:
            yield f"low={low} must be less than high={high}: exchange them, or put the key into settings"
        if self.log and low <= 0:
            yield f"log=True with low={low}: a logarithmic scale begins above 0; raise low"
        if self.log and step is not None:
            yield f"log=True with step={step}: a logarithmic scale has no steps; remove one of the two"
        if step is not None and not _divides(step, low, high):
            yield f"step={step} must be above 0 and divide high - low = {high} - {low} evenly"

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """The values at which the bounds, and a step between them, are checked."""
        return tuple(dict.fromkeys((self.low, self.low + (self.step or 0), self.high)))


class Choices(Spec):
    """One of several values."""

    choices: Annotated[tuple[Scalar, ...], Field(min_length=2)]

    def faults(self) -> Iterator[str]:
        if len({repr(value) for value in self.choices}) < len(self.choices):
            yield f"choices={list(self.choices)}: a value appears twice; remove one"

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """The values at which the bounds are checked."""
        return self.choices


Parameter = Interval | Choices


class SamplerSpec(Spec):
    """How points are proposed. The first `startup` points are random; for NSGA-II this is the population size."""

    name: Literal["tpe", "nsga2", "random"] = "tpe"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    startup: Annotated[int, Field(ge=2)] = 10


class PrunerSpec(Spec):
    """When a trial is pruned: never before `startup` trials are complete, or before its step `warmup_steps`."""

    name: Literal["median", "hyperband", "none"] = "none"
    startup: Annotated[int, Field(ge=0)] = 5
    warmup_steps: Annotated[int, Field(ge=0)] = 0


TUNED = (
    "a parameter is KEY: {low: ..., high: ...} or KEY: {choices: [...]}, or either for each core, KEY: {CORE: {low: "
    "..., high: ...}}, with a KEY such as rule.delta and a CORE such as exact"
)


def _tuned(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(TUNED)
    return value


class SearchSpec(Spec):
    """What is tuned. `parameters`: configuration key -> an interval or choices, or either for each core."""

    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)]
    parameters: Annotated[dict[str, Any], Field(min_length=1), BeforeValidator(_tuned)]
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)]
    sampler: SamplerSpec = SamplerSpec()
    pruner: PrunerSpec = PrunerSpec()

    def faults(self) -> Iterator[str]:
        if len(set(self.objectives)) < len(self.objectives):
            yield f"objectives={list(self.objectives)}: one appears twice; remove it"
        if len(self.objectives) > 1 and self.pruner.name != "none":
            yield (
                f"pruner.name={self.pruner.name!r} with objectives={list(self.objectives)}: Optuna prunes for a single "
                "objective only; set pruner: {name: none}"
            )


class Search(Declared):
    """What a search file declares.

    Every trial trains the model with `settings`, once for each of `seeds`, at a point of the search space; objectives
    are averaged over the seeds. `models` names one model, or a model for each trainer core.
    """

    models: dict[str, str]
    settings: dict[str, Scalar] = Field(default_factory=dict)
    seeds: Seeds = (0,)
    search: SearchSpec

    @field_validator("models", mode="before")
    @classmethod
    def _one_for_each_core(cls, value: Any) -> Any:
        lists = _names(value)
        if any(len(names) > 1 for names in lists.values()):
            raise ValueError(
                "must be a list of exactly one name, or such a list for each core: a search tunes for one model"
            )
        return {core: names[0] for core, names in lists.items()}

    def faults(self) -> Iterator[str]:
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds={list(self.seeds)}: one appears twice; remove it"
        for key in self.settings.keys() & self.search.parameters.keys():
            yield f"settings.{key}={self.settings[key]!r} is tuned by search.parameters too: keep one of them"

    def model_of(self, core: str) -> str:
        """The model to train with `core`.

        Raises UserError if the search has none for it.
        """
        return str(self._of("models", self.models, core))

    def parameter_of(self, key: str, core: str) -> Parameter:
        """The interval or choices of a tuned key with `core`.

        Raises UserError for a parameter that is neither, or has no bounds for the core.
        """
        place, values = f"search {self.source}: search.parameters.{key}", self.search.parameters[key]
        of_cores = isinstance(values, dict) and values and values.keys() <= set(core_names())
        for bounds in values.values() if of_cores else [values]:
            plain = isinstance(bounds, dict) and not any(isinstance(part, dict) for part in bounds.values())
            if not (plain and {*Interval.model_fields, *Choices.model_fields} & bounds.keys()):
                raise UserError(f"{place}={values!r}: {TUNED}")
        if of_cores:
            if core not in values:
                raise UserError(
                    f"{place} has no bounds for core={core} (valid: {', '.join(values)}): add {core}: {{...}}"
                )
            place, values = f"{place}.{core}", values[core]
        return parse(Choices, values, place) if "choices" in values else parse(Interval, values, place)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


_VALUES = "plain values"
_DOTS = "a key within a key is written with dots, as rule.w_min"


def _by_core(value: Any, is_item: Callable[[object], bool], what: str) -> dict[str, Any]:
    """Normalise a list, or a list per core, to lists by core."""
    lists: dict[str, Any] = value if isinstance(value, dict) else {ANY_CORE: value}
    for core in lists:
        if core not in (ANY_CORE, *core_names()):
            raise ValueError(str(unknown("core", core, core_names())) + f"; {_DOTS}" * (what == _VALUES))
    for items in list(lists.values()) or [None]:
        if not (isinstance(items, list) and items and all(map(is_item, items))):
            raise ValueError(f"must be a list of one or more {what}, or such a list for each core")
        for i, item in enumerate(items):
            if any(same(item, other) for other in items[:i]):
                raise ValueError(f"{item!r} appears twice: remove one")
    return {core: tuple(items) for core, items in lists.items()}


_names = partial(_by_core, is_item=lambda item: isinstance(item, str), what="names")
_values = partial(_by_core, is_item=_is_scalar, what=_VALUES)


def same(value: Scalar, other: Scalar) -> bool:
    """Whether two values of a key are equal: 1 equals 1.0, but not true."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _condition_values(value: Any) -> Any:
    """A condition's value or values, as values."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(map(_is_scalar, values)):
        raise ValueError("must be a plain value or a list of one or more")
    return tuple(values)


def _one(value: Any) -> Any:
    if not _is_scalar(value):
        how = _DOTS if isinstance(value, dict) else "several are an axis"
        raise ValueError(f"must be a plain value: {how}")
    return value


def _variant_name(value: str) -> str:
    if not value or value != value.strip():
        raise ValueError("must be a name, without blanks at its ends")
    if "," in value:
        raise ValueError("must be a name without commas: the command line lists names (variant=a,b)")
    if ";" in value:
        raise ValueError("must be a name without semicolons: records list the variants of a run with them")
    if not value.isprintable():  # line ends and bidirectional control characters
        raise ValueError(f"must consist of printable characters: {value!a}")
    return value


def _some(value: Any) -> Any:
    if value == {}:
        raise ValueError("must name at least one of variant, model, core, or a key of variants and axes")
    return value


Models = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_names)]
Values = Annotated[dict[str, tuple[Scalar, ...]], BeforeValidator(_values)]
Axes = dict[str, Values]
Conditions = Annotated[
    dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(_condition_values)]], BeforeValidator(_some)
]
VariantName = Annotated[str, AfterValidator(_variant_name)]
VariantValue = Annotated[Scalar, BeforeValidator(_one)]


class ResourceRule(Spec):
    """The resources of runs: of all runs, or of those that meet the conditions of `for`."""

    for_: Conditions | None = Field(default=None, alias="for")
    layout: str | None = None
    nodes: Count | None = None
    gpus: Count | None = None  # of each node
    hours: Hours | None = None
    cpus: Count | None = None
    memory_gb: Memory | None = None
    gpu_type: GpuType | None = None
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Features | None = None

    def settings(self) -> dict[str, tuple[str, Scalar]]:
        """The settings in the file, by configuration key: (the file's key, value)."""
        keys = {"layout": "layout", "nodes": "layout.nodes", "gpus": "layout.devices_per_node"}
        return {
            keys.get(name, f"resources.{name}"): (name, getattr(self, name))
            for name in type(self).model_fields
            if name in self.model_fields_set and name != "for_"
        }


class Sweep(Declared):
    """What a sweep file declares.

    Every run of the sweep is a model x variant x a value of each applicable axis. A variant is a name and the
    configuration keys that define it; an axis is a configuration key and its values. `models` and axes are a list, or a
    list per trainer core, so that the same comparison can run at every scale. A plain list is stored under ANY_CORE.
    `exclude` removes the runs that meet all conditions of any of its entries. `hypotheses` are registered in the store
    before the runs that test them. `baseline` is the variant from which the report takes differences; by default DPPO,
    or else the first variant. `beside` names sweeps on the same question, to whose reports the page links. `pairing`:
    whether variants are compared seed by seed; None: decided by their design. `analysis`: factorial asks the report for
    the effects of the axes.
    """

    models: Models
    axes: Axes = Field(default_factory=dict)
    variants: Annotated[dict[VariantName, dict[str, VariantValue]], Field(min_length=1)] = Field(
        default={"": {}}
    )
    exclude: tuple[Conditions, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    hypotheses: Hypotheses = Field(default_factory=dict)
    baseline: str = ""
    beside: tuple[Name, ...] = ()
    pairing: Pairing | None = None
    analysis: Literal["factorial"] | None = None

    @field_validator("variants")
    @classmethod
    def _have_rules(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        default = None if "rule" in info.data.get("axes", {}) else "cppo"  # of conf/config.yaml
        for name in sorted(value.keys() & set(shipped()["rule"])):
            rule = value[name].get("rule", default)
            if rule not in (None, name):  # figures and tables would show it as what it is called
                remedy = "rename it (no run changes)" if "rule" in value[name] else f"add rule: {name}"
                raise ValueError(f"{name} names a rule but would train {rule}: {remedy}")
        return value

    @field_validator("analysis")
    @classmethod
    def _has_axes(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and not info.data.get("axes", {"": ()}).keys() - {"seed"}:
            raise ValueError("the sweep has no axis but seed: add the settings to vary to `axes`")
        return value

    @field_validator("baseline")
    @classmethod
    def _check_baseline(cls, value: str, info: ValidationInfo) -> str:
        variants = info.data.get("variants")
        if value and variants and not is_of(value, variants):
            raise ValueError(str(unknown("baseline", value, list(variants))))
        return value

    @property
    def paired(self) -> bool | None:
        """`pairing` as a boolean, or None if the file does not set it."""
        return None if self.pairing is None else self.pairing == "seed"

    def statement(self, overrides: Sequence[str] = ()) -> tuple[str, str]:
        """The hypotheses and the definition of the variants as they are registered, with `overrides` that change the
        runs: a JSON text, and its digest. Changing any of it makes a different hypothesis; what was added later is
        left out where it is unused.
        """
        stated: dict[str, Any] = {
            "hypotheses": {
                key: hypothesis.model_dump(mode="json", exclude_none=True)
                for key, hypothesis in self.hypotheses.items()
            },
            "models": self.models,
            "variants": {
                name: {key: repr(value) for key, value in keys.items()}
                for name, keys in self.variants.items()
            },
            "axes": {key: _reprs(lists) for key, lists in self.axes.items()},
            "exclude": list(map(_reprs, self.exclude)),
        }
        if self.pairing:
            stated["pairing"] = self.pairing
        if overrides:
            stated["overrides"] = sorted(overrides)
        text = json.dumps(stated, sort_keys=True, separators=(",", ":"))
        return text, schema.digest(text)

    def models_of(self, core: str) -> tuple[str, ...]:
        """The models to train with `core`.

        Raises UserError if the sweep has none for it.
        """
        return tuple(self._of("models", self.models, core))

    def axes_of(self, core: str) -> dict[str, tuple[Scalar, ...]]:
        """The axes with their values for `core`.

        Raises UserError if an axis has none for it.
        """
        return {key: self._of(f"axes.{key}", values, core) for key, values in self.axes.items()}

    def with_axes(self, study: "Study") -> "Sweep":
        """The sweep with the study's axes, which replace those of the same name."""
        sweep = self.model_copy(update={"axes": self.axes | study.axes})
        sweep._source = f"{self.source} in study {study.source}"
        return sweep

    def without(self, places: Collection[str]) -> "Sweep":
        """The sweep without these entries of its file, such as `axes.KEY`, `variants.NAME.KEY`, `exclude.0`."""
        return self.model_copy(
            update={
                "axes": {key: values for key, values in self.axes.items() if f"axes.{key}" not in places},
                "variants": {
                    name: {
                        key: value for key, value in keys.items() if f"variants.{name}.{key}" not in places
                    }
                    for name, keys in self.variants.items()
                },
                "exclude": tuple(
                    entry for i, entry in enumerate(self.exclude) if f"exclude.{i}" not in places
                ),
                "resources": tuple(
                    rule for i, rule in enumerate(self.resources) if f"resources.{i}.for" not in places
                ),
            }
        )


def _reprs(lists: Mapping[str, tuple[Scalar, ...]]) -> dict[str, list[str]]:
    return {key: list(map(repr, values)) for key, values in lists.items()}


class Study(Declared):
    """What a study file declares: several sweeps, whose shared runs are trained once.

    `axes` are those of every sweep too, and replace its axes of the same name.
    """

    sweeps: Annotated[tuple[str, ...], Field(min_length=1)]
    axes: Axes = Field(default_factory=dict)


# A file without any of these is not a sweep file.
_TELLING = frozenset({"title", "question", "models", "variants", "axes", "sweeps"})


def shipped_sweeps() -> list[str]:
    """Names of the sweeps shipped with the product."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def _files(folder: Path) -> dict[str, str]:
    """The YAML files in a folder: name without the ending -> path."""
    try:
        return {
            path.stem: str(path)
            for path in folder.iterdir()
            if path.suffix in (".yaml", ".yml") and path.is_file()
        }
    except OSError:
        return {}


def is_path(name: str) -> bool:
    """Whether a sweep's name is the path of a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def load_sweep(name: str) -> Sweep | Study | Search:
    """The sweep, study or search called `name`, or that in the file `name` if that is a path to a YAML file.

    Raises UserError for an unknown name, an unreadable file, or a key or value that does not belong there.
    """
    if is_path(name):
        path = Path(name)
        try:
            text = read_text(path, name)
        except FileNotFoundError:
            files = _files(path.parent)
            near = " or ".join(repr(files[stem]) for stem in nearest(path.stem, files))
            hint = f": did you mean {near}?" if near else ""
            raise UserError(
                f"sweep file {name} does not exist{hint} (shipped sweeps: {', '.join(shipped_sweeps())})"
            ) from None
        stem, folder = path.stem, path.parent
    elif name in shipped_sweeps():
        text, stem, folder = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), name, None
    elif os.path.isfile(name):  # noqa: PTH113 - of a Path too long a name is an error
        raise UserError(
            f"{name} is a file, but a sweep file ends with .yaml: rename it, or name it as ./{name}"
        )
    elif COMPLETE_ID.fullmatch(name):
        raise UserError(f"{name!r} is the id of a run: name its sweep, which `cppo show {name}` says")
    else:
        raise unknown("sweep", name, shipped_sweeps(), _files(Path()))
    values = {"name": stem, **mapping(text, name)}
    if not values.keys() & (_TELLING | {"search"}):
        keys = ", ".join(sorted(values.keys() - {"name"})[:8]) or "none"
        raise UserError(
            f"{name} is no sweep file: it has the keys {keys}, and none of title, question, models, variants, axes, "
            "sweeps, search: see docs/sweeps.md"
        )
    if values["name"] == stem and not re.match(_NAME, stem):
        raise UserError(
            f"sweep file {name}: its name is the sweep's, and must match {_NAME}: rename it, or give it a key `name`"
        )
    if folder is not None:
        read_rules(Path(name))
    # A key that only this kind has says it.
    kind: type[Sweep | Study | Search] = (
        Search if "search" in values else Study if "sweeps" in values else Sweep
    )
    try:
        declared = parse(kind, values, f"{'search' if 'search' in values else 'sweep'} {name}")
    except UserError as error:
        raise SweepFaults(str(error), None if kind is Study else _sound(values, error, name)) from None
    if isinstance(declared, Study) and folder is not None:
        parts = tuple(str(folder / part) if is_path(part) else part for part in declared.sweeps)
        declared = declared.model_copy(update={"sweeps": parts})
    declared._source = name
    return declared


def files_of(name: str) -> list[Path]:
    """The user's files that a sweep consists of: its own first, and the rules beside it; of a study also its parts'."""
    if not is_path(name):
        return []
    declared, file = load_sweep(name), Path(name)
    parts = declared.sweeps if isinstance(declared, Study) else ()
    return [
        file,
        *sorted((file.parent / RULE_FOLDER).glob("*.yaml")),
        *(path for part in parts for path in files_of(part)),
    ]


class SweepFaults(UserError):
    """The mistakes in the form of a sweep or search file; `sound`: it without what has them, if there is any."""

    def __init__(self, text: str, sound: Sweep | Search | None) -> None:
        super().__init__(text)
        self.sound = sound


def _sound(values: Mapping[str, Any], error: UserError, source: str) -> Sweep | Search | None:
    """A file without its faulty entries; None if others refer to a faulty entry."""
    cause = error.__cause__
    places = [fault["loc"] for fault in cause.errors()] if isinstance(cause, ValidationError) else []
    faulty = {str(place[0]) for place in places if place}
    if not faulty or faulty & {"models", "variants", "axes"}:
        return None
    kind = Search if "search" in values else Sweep
    remaining = {key: value for key, value in values.items() if key not in faulty}
    if kind is Search and isinstance(search := values["search"], dict):
        wrong = {str(place[1]) for place in places if place[0] == "search" and len(place) > 1}
        remaining["search"] = {
            "trials": 1,
            "objectives": ["final_score"],
            **{key: value for key, value in search.items() if key not in wrong or key == "parameters"},
        }
    try:
        declared = kind.model_validate_json(json.dumps({"title": "", "name": "sweep", **remaining}))
    except (ValueError, TypeError):
        return None
    if "hypotheses" in faulty:
        declared = declared.model_copy(update={"hypotheses": _readable(values["hypotheses"])[0]})
    declared._source = source
    return declared
