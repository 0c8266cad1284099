"""Looks up rules by name: built-in rules and rules of other packages. One record per rule.

A rule of another package is found by an entry point of the group `cppo_lab.rules`, or by its import path from the
command line (`rule.path`) or CPPO_RULES. Either one must name a `Rule` or a function with a rule's signature. In a
run's configuration, and so in its id, `path` is the import path or ENTRY_POINT; it is None for a built-in rule.

Guarantees of this package: a record has everything that the product knows of a rule except its constants
(`record.py`). torch is not imported, no rule is imported before it trains or a report needs its title, and no file can
name code. Begin with `record.py` and `built_in.py`. The functions are in `cppo_lab.maths`, the constants in conf/rule.
"""

import inspect
import os
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from cppo_lab.errors import UserError, unknown
from cppo_lab.plugins import PATH, entry_points, load
from cppo_lab.rules.built_in import BUILT_IN, SETTINGS
from cppo_lab.rules.record import DIVERGENCE, KL, MINIBATCH, PERMUTATION, RESPONSE, Row, Rule, Stroke, Variant

__all__ = [
    "DIVERGENCE",
    "ENTRY_POINT",
    "GROUP",
    "KL",
    "METHODS",
    "METHOD_COLOURS",
    "MINIBATCH",
    "NAMED",
    "PERMUTATION",
    "RESPONSE",
    "RULES",
    "VARIABLE",
    "Row",
    "Rule",
    "Stroke",
    "Variant",
    "from_environment",
    "known",
    "rule_of",
]

GROUP = "cppo_lab.rules"  # of entry points
VARIABLE = "CPPO_RULES"  # comma-separated import paths
ENTRY_POINT = "entry point"

RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in BUILT_IN})
NAMED: Mapping[str, Variant] = MappingProxyType({one.name: one for one in (*BUILT_IN, *SETTINGS)})
# The rows of the paper's main table, in its order.
METHODS: tuple[Rule, ...] = tuple(
    sorted((rule for rule in BUILT_IN if rule.place), key=lambda one: one.place)
)
# The paper's colours of them.
METHOD_COLOURS: Mapping[str, str] = MappingProxyType(
    {one.name: one.stroke.colour for one in METHODS if one.stroke}
)


def rule_of(name: str, path: str | None = None) -> Rule:
    """The rule called `name`; `path` as in a run's configuration. Imports a rule of another package.

    Raises UserError for an unknown name or path, and for an object that is not a rule.
    """
    if path is None:
        if name not in RULES:
            raise unknown("rule", name, RULES)
        return RULES[name]
    if name in RULES:
        raise UserError(
            f"rule.path={path!r}: rule {name!r} is built in; give a rule of your own another name"
        )
    if path != ENTRY_POINT:
        return _foreign(name, path)
    points = entry_points(GROUP)
    if name not in points:
        raise UserError(
            f"rule {name!r} is of another package, and no installed one has an entry point {name!r} in {GROUP!r} "
            f"(there are: {', '.join(sorted(points)) or 'none'}): install it, or give rule.path=package.module:name "
            f"on the command line, or in {VARIABLE}"
        )
    return _foreign(name, points[name])


def from_environment(name: str) -> str | None:
    """The import path of a rule in the user's environment, i.e. the entry of CPPO_RULES that ends in `:name`.

    Raises UserError for an entry of the variable that is not an import path.
    """
    paths = [text.strip() for text in os.environ.get(VARIABLE, "").split(",") if text.strip()]
    for path in paths:
        if not PATH.fullmatch(path):
            raise UserError(f"{VARIABLE}: {path!r} must be package.module:function; commas separate several")
    return next((path for path in reversed(paths) if path.rpartition(":")[2] == name), None)


def known(name: str) -> Variant | None:
    """The display record for a name, from the product or from a package that is installed or named in CPPO_RULES.

    None for any other name, or if the package cannot be imported; the name itself is then displayed.
    """
    if name in NAMED:
        return NAMED[name]
    try:
        path = from_environment(name) or (ENTRY_POINT if name in entry_points(GROUP) else None)
        return rule_of(name, path) if path else None
    except UserError:
        return None


@cache
def _foreign(name: str, path: str) -> Rule:
    found: Any = load(path, "rule.path")
    if isinstance(found, Rule):
        if found.name != name:
            raise UserError(
                f"rule.path={path!r} is the rule {found.name!r}, not {name!r}: one of the names is wrong"
            )
        return found
    if not callable(found):
        raise UserError(
            f"rule.path={path!r} is a {type(found).__name__}: name a function or a cppo_lab.rules.Rule"
        )
    own = inspect.signature(found).parameters.get(PERMUTATION)
    drawn = own is not None and own.default is own.empty
    return Rule(name=name, function=found, needs=frozenset({RESPONSE, *([PERMUTATION] if drawn else [])}))
