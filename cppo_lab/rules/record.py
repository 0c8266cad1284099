"""The record of a rule: all its metadata except its constants, which are in its YAML file.

Imports neither torch nor the rule's function, since tables and plans need only records.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cppo_lab.errors import UserError, unknown
from cppo_lab.plugins import load

# What a rule needs from its caller, and what its decision on a token depends on.
DIVERGENCE = "divergence"  # D_t; a rule without this need uses it for statistics only
KL = "kl"  # D_t must be a KL divergence: its thresholds are on KL(mu to pi)
# The whole minibatch in one call: its decisions would differ on micro-batches or on the parts of ranks.
MINIBATCH = "minibatch"
PERMUTATION = (
    "permutation"  # the keyword `permutation` [B, T], drawn once per rollout (weights.shuffled_weights)
)
RESPONSE = "response"  # tokens of the same response besides the token itself, or its length
NEEDS = frozenset({DIVERGENCE, KL, MINIBATCH, PERMUTATION, RESPONSE})


@dataclass(frozen=True)
class Stroke:
    """The line style of a variant. `dash`: lengths of strokes and gaps in line widths, empty for a solid line.
    `marker`: matplotlib's marker for its points, empty for none.
    """

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = ""

    def line(self) -> dict[str, Any]:
        """The settings of a line without its markers."""
        return {"color": self.colour, "linestyle": (0, self.dash) if self.dash else "-"}

    def marked(self) -> dict[str, Any]:
        """The settings of a line with a marker about every eighth of the panel's diagonal."""
        if not self.marker:
            return self.line()
        return self.line() | {"marker": self.marker, "markevery": 0.12, "markersize": 3.8}


@dataclass(frozen=True)
class Row:
    """A rule's row in the table of the rules' differences.

    bounds: what is bounded, such as `ratio` or `divergence`.
    per: the unit of a decision: `token`, `response` or `minibatch`.
    position, prefix: whether the limit of a token depends on its position, and on the tokens before it.
    beyond: what happens beyond the bound: `masked`, `clipped`, `capped`, `weighed less`, `pulled back`.
    """

    bounds: str
    per: str = "token"
    position: str = "no"
    prefix: str = "no"
    beyond: str = "masked"

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells in the table's order."""
        return (self.bounds, self.per, self.position, self.prefix, self.beyond)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The display properties of a name in a sweep.

    title: in tables and legends; empty: the name itself.
    stroke, accessible: its line style in the paper's palette and in the one for colour-blind readers; None: the next
    free one.
    """

    name: str
    title: str = ""
    stroke: Stroke | None = None
    accessible: Stroke | None = None


@dataclass(frozen=True, kw_only=True)
class Rule(Variant):
    """A rule.

    function: `package.module:name`, or the function itself: `fn(logp, rollout_logp, advantages, valid,
        divergence=None, *, <constants>) -> RuleOutput`, all tensors [B, T], constants as plain keyword scalars
        (cppo_lab.maths.tokens).
    needs: of DIVERGENCE, KL, MINIBATCH, PERMUTATION, RESPONSE.
    fixed: constants of the function that define this rule and cannot be configured.
    paper: arXiv number of its paper; empty: none.
    row: its row in the table of the rules' differences; None: dashes.
    place: its row in the paper's main table, from 1; 0: it is not in the table.

    Raises ValueError for an unknown need.
    """

    function: str | Callable[..., Any]
    needs: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    paper: str = ""
    row: Row | None = None
    place: int = 0

    def __post_init__(self) -> None:
        if wrong := set(self.needs) - NEEDS:
            raise ValueError(f"rule {self.name!r} needs {sorted(wrong)}: choose from {sorted(NEEDS)}")

    @functools.cached_property
    def load(self) -> Callable[..., Any]:
        """The rule as a callable, with `fixed` bound, that takes `permutation` only if the rule needs it.

        Raises UserError if the function cannot be imported.
        """
        function = load(self.function, "rule.path") if isinstance(self.function, str) else self.function
        return _with_constants(self, function) if self.fixed or PERMUTATION in self.needs else function

    def check(self, constants: Mapping[str, Any], measure: str) -> None:
        """Check a run's constants and its divergence's measure against the rule. Imports the function.

        Raises UserError for an unknown or missing constant, or a measure that does not fit.
        """
        takes = self.constants()
        if strange := next((name for name in constants if name not in takes), None):
            raise unknown(f"constant of rule {self.name!r}", strange, takes)
        if missing := [name for name, required in takes.items() if required and name not in constants]:
            raise UserError(f"rule {self.name!r} lacks the constants {', '.join(missing)}: give them a value")
        if KL in self.needs and measure == "tv":
            raise UserError(
                f"measure='tv' with rule {self.name!r}: its thresholds are on KL(mu to pi); choose measure kl, or "
                "estimator sample with k2 or k3"
            )

    def constants(self) -> dict[str, bool]:
        """The constants that the function takes, and whether each must be given."""
        return {
            name: one.default is one.empty
            for name, one in inspect.signature(self.load).parameters.items()
            if one.kind is one.KEYWORD_ONLY and name != PERMUTATION
        }


def _with_constants(rule: Rule, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the rule's fixed constants bound."""
    whole = inspect.signature(function)
    left = {name: one for name, one in whole.parameters.items() if name not in rule.fixed}
    if PERMUTATION in left and PERMUTATION not in rule.needs:
        del left[PERMUTATION]
    elif PERMUTATION in left:
        left[PERMUTATION] = left[PERMUTATION].replace(default=inspect.Parameter.empty)
    own = whole.replace(parameters=list(left.values()))

    @functools.wraps(function)
    def called(*arguments: Any, **constants: Any) -> Any:
        given = own.bind(*arguments, **constants).arguments
        if DIVERGENCE in rule.needs and given.get("divergence") is None:
            raise ValueError(f"divergence=None: rule {rule.name!r} needs D_t [B, T], see maths/divergence.py")
        return function(*arguments, **constants, **rule.fixed)

    called.__signature__ = own  # type: ignore[attr-defined]  # what inspect.signature reads
    return called
