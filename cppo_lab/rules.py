"""The rules: a table of records, with everything that the product knows of a rule except its constants (conf/rule).

A record has the function (in `cppo_lab.maths`), what it needs, its title, stroke and paper. Neither torch nor a rule's
function is imported before it trains, since tables and plans need only records.

A rule of another package is found by an entry point of the group `cppo_lab.rules`, or by its import path from the
command line (`rule.path`) or CPPO_RULES. Either must name a `Rule` or a function with a rule's signature. In a
run's configuration, and so in its id, `path` is the import path or ENTRY_POINT; it is None for a built-in rule. No file
can name code.
"""

import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple

from cppo_lab.errors import UserError, one_line, unknown
from cppo_lab.plugins import PATH, entry_points, load

# The position weight w_t of a token and the range of w_min, without torch: for bounds, figures and configurations.
#
#     w_t = 1 - (1 - w_min) (t - 1) / (T - 1),   t = 1..T;   w_1 = 1 when T = 1
#
# `maths/weights.py` computes the weights of a batch; a test compares the two.
ABOVE, AT_MOST = 0, 1  # w_min lies in (0, 1]; 1 switches the weights off


def is_w_min(value: float) -> bool:
    """Whether w_min may have this value."""
    return ABOVE < value <= AT_MOST


def position_weight(t: int, length: int, w_min: float) -> float:
    """w_t for t = 1..T, T = `length`. The arguments are not checked."""
    return 1 - (1 - w_min) * (t - 1) / max(1, length - 1)


# Colours and dashes of the palette for colour-blind readers.
#
# Okabe and Ito's colours (2008) without the yellow, which is too light for a line on white.

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
LONG, SHORT, DOTS, DASH_DOT = (6.0, 2.0), (3.0, 1.5), (1.0, 1.5), (6.0, 1.5, 1.0, 1.5)
DASH_DOTS, LONG_SHORT = (6.0, 1.5, 1.0, 1.5, 1.0, 1.5), (8.0, 1.5, 3.0, 1.5)


# The record of a rule.


# What a rule needs from its caller, and what its decision on a token depends on.
DIVERGENCE = "divergence"  # D_t; a rule without this need uses it for statistics only
KL = "kl"  # D_t must be a KL divergence: its thresholds are on KL(mu to pi)
# The whole minibatch in one call: its decisions would differ on micro-batches or on the parts of ranks.
MINIBATCH = "minibatch"
PERMUTATION = "permutation"  # `tokens.permutation`, drawn once per rollout (weights.own_order)
RESPONSE = "response"  # tokens of the same response besides the token itself, or its length
DRIFT = "drift"  # the first-order change of D_t (divergence.drift)
ENTROPY = "rollout_entropy"  # of mu
NEEDS = frozenset({DIVERGENCE, KL, MINIBATCH, PERMUTATION, RESPONSE, DRIFT, ENTROPY})


@dataclass(frozen=True)
class Stroke:
    """The line style of a variant. `dash`: lengths of strokes and gaps in line widths, empty for a solid line.
    `marker`: matplotlib's marker for its points, empty for none.
    """

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch("#([0-9A-Fa-f]{3}){1,2}|[a-z]+", self.colour):
            raise ValueError(f"stroke of colour {self.colour!r}: a colour is as '#0052D9' or 'red'")

    def line(self) -> dict[str, Any]:
        """The settings of a line without its markers."""
        return {"color": self.colour, "linestyle": (0, self.dash) if self.dash else "-"}

    def marked(self) -> dict[str, Any]:
        """The settings of a line with a marker about every eighth of the panel's diagonal."""
        if not self.marker:
            return self.line()
        return self.line() | {"marker": self.marker, "markevery": 0.12, "markersize": 3.8}


class Row(NamedTuple):
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


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The display properties of a name in a sweep.

    title: in tables and legends; empty: the name itself.
    stroke, accessible: its line style in the paper's palette and in the palette for colour-blind readers; None: the
    next free style.
    """

    name: str
    title: str = ""
    stroke: Stroke | None = None
    accessible: Stroke | None = None


@dataclass(frozen=True, kw_only=True)
class Rule(Variant):
    """A rule.

    function: `package.module:name`, or the function itself: `fn(tokens, *, <constants>) -> RuleOutput`, with constants
        as plain keyword scalars (cppo_lab.maths.tokens). In a configuration they are fields of `RuleSpec` where it has
        a field of that name, else, for a rule of another package, numbers under `options`. The output has the
        statistics of `maths.tokens.common_stats`, as `rule_output` makes them; further sums become metrics if `SHARES`
        there names them. Its tests may be empty: the first that fails a token is the reason that a record gives.
    needs: of NEEDS. A function without a record, which `rule.path` names, is taken to need RESPONSE: a rule that reads
        the divergence works with that, but a rule that needs a whole minibatch, or other inputs, must have a record.
    fixed: constants of the function that define this rule and cannot be configured.
    paper: arXiv number of its paper; empty: none.
    row: its row in the table of the rules' differences; None: dashes.

    Raises ValueError for an unknown need, or a stroke of another class.
    """

    function: str | Callable[..., Any]
    needs: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    paper: str = ""
    row: Row | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", frozenset(self.needs))
        if wrong := self.needs - NEEDS:
            raise ValueError(f"rule {self.name!r} needs {sorted(wrong)}: choose from {sorted(NEEDS)}")
        for stroke in (self.stroke, self.accessible):
            if not isinstance(stroke, Stroke | None):
                raise ValueError(
                    f"rule {self.name!r} has the stroke {stroke!r}: give a cppo_lab.rules.Stroke"
                )

    @functools.cached_property
    def apply(self) -> Callable[..., Any]:
        """The rule as a checked function of tokens and its constants, with `fixed` bound.

        Raises UserError if the function cannot be imported, has another signature, or returns no `RuleOutput`.
        """
        function = load(self.function, "rule.path") if isinstance(self.function, str) else self.function
        parameters = list(inspect.signature(function).parameters.values())
        others = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        positional = [parameter for parameter in parameters if parameter.kind not in others]
        if len(positional) != 1 or positional[0].kind is inspect.Parameter.VAR_POSITIONAL:
            raise UserError(
                f"rule {self.name!r} takes ({', '.join(parameter.name for parameter in parameters)}): since cppo-lab "
                "0.2.0 a rule takes one record and constants by name, fn(tokens, *, delta, ...), with tokens.logp, "
                ".rollout_logp, .advantages, .valid and .divergence; change its signature as docs/rules.md shows"
            )

        @functools.wraps(function)
        def called(tokens: Any, **constants: Any) -> Any:
            for need, remedy in _GIVEN.items():
                if need in self.needs and getattr(tokens, need) is None:
                    raise ValueError(f"{need}=None: rule {self.name!r} needs {remedy}")
            output = function(tokens, **constants, **self.fixed)
            if fault := _output_fault(output, tokens.logp, tokens.valid):
                raise UserError(
                    f"rule {self.name!r} returns {fault}: return a RuleOutput as docs/rules.md says, with objective "
                    f"and keep of shape {list(tokens.logp.shape)} and {tokens.logp.dtype}, named tests of that shape "
                    f"and {tokens.valid.dtype}, and named scalar statistics"
                )
            return output

        return called

    @property
    def centering_fault(self) -> str:
        """Why its loss cannot be centred; empty: it can, since other tokens affect a token's weight through D alone.

        Then its weight is known for every token that mu could have sampled. RESPONSE is read as D's alone if the rule
        needs DIVERGENCE.
        """
        others = RESPONSE in self.needs and DIVERGENCE not in self.needs
        if not others and self.needs.isdisjoint({MINIBATCH, PERMUTATION, DRIFT}):
            return ""
        return (
            f"objective.centering=true with rule {self.name!r}: the weight it would give to a token that was not "
            "sampled is not defined, since it depends on more than this token and D; set objective.centering=false"
        )

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
            name: parameter.default is parameter.empty
            for name, parameter in inspect.signature(self.apply).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY and name not in self.fixed
        }


def _output_fault(output: Any, logp: Any, valid: Any) -> str:
    """What keeps a rule's `output` on tokens with `logp` and `valid` [B, T] from being a RuleOutput; empty: nothing."""

    def form(value: Any) -> str:
        is_tensor = isinstance(value, type(logp))
        return (
            f"of shape {list(value.shape)} and {value.dtype}" if is_tensor else f"of {type(value).__name__}"
        )

    if not all(hasattr(output, name) for name in ("objective", "keep", "stats", "tests")):
        return f"a {type(output).__name__}"
    for name in ("objective", "keep"):
        if form(getattr(output, name)) != form(logp):
            return f"{'an' if name == 'objective' else 'a'} {name} {form(getattr(output, name))}"
    for part in ("stats", "tests"):
        named = getattr(output, part)
        if not (isinstance(named, Mapping) and all(isinstance(name, str) for name in named)):
            return f"{part} that are no mapping of names: {one_line(repr(named))[:80]}"
    for name, value in output.stats.items():
        if not isinstance(value, type(logp)) or value.ndim:
            return f"the statistic {name!r} {form(value)}, not a scalar tensor"
    for name, value in output.tests.items():
        if form(value) != form(valid):
            return f"the test {name!r} {form(value)}"
    return ""


# What tokens must have for a rule that needs it.
_GIVEN = {
    DIVERGENCE: "D_t [B, T], see maths/divergence.py",
    PERMUTATION: "an order [B, T] of each response's positions, see maths/weights.py",
    DRIFT: "the change of D_t [B, T], see divergence.drift",
    ENTROPY: "the entropy of mu [B, T]",
}


# The records of the built-in rules, and of named settings of these rules.

CPPO_PAPER, TRM_PAPER = "2606.10968", "2512.23075"
_BUDGET = frozenset({DIVERGENCE, RESPONSE})
_OF_RESPONSE = frozenset({RESPONSE})
_NO_BUDGET = {"delta_b": math.inf, "delta_b_mode": "fixed"}


def _rule(
    module: str, name: str, title: str, row: Row | None = None, function: str = "", **more: Any
) -> Rule:
    """A rule of a module of `maths`, whose function has the rule's name unless it is given."""
    path = f"cppo_lab.maths.{module}:{function or name}"
    return Rule(name=name, function=path, title=title, row=row, **more)


def _drawn(colour: str, *accessible: Any) -> dict[str, Any]:
    """A solid line of this colour, and how it is drawn for colour-blind readers."""
    return {"stroke": Stroke(colour), "accessible": Stroke(*accessible)}


_mask, _clip = functools.partial(_rule, "masks"), functools.partial(_rule, "clips")
_response = functools.partial(_rule, "responses", needs=_OF_RESPONSE)
_grpo = functools.partial(_clip, function="grpo", row=Row("ratio", beyond="clipped"))
# CPPO, and its ablations and controls.
_cppo = functools.partial(_mask, function="cppo", paper=CPPO_PAPER, needs=_BUDGET)
_trm = functools.partial(
    _response, function="trm", paper=TRM_PAPER, needs=frozenset({DIVERGENCE, KL, RESPONSE})
)

# In the order of the table of rule differences.
BUILT_IN = (
    _grpo(
        "grpo",
        "GRPO",
        paper="2402.03300",
        **_drawn("#59A14F", GREEN, DASH_DOTS, "P"),
    ),
    # One function: PPO is the symmetric choice clip_low = clip_high.
    _grpo(
        "ppo",
        "PPO",
        paper="1707.06347",
    ),
    # Dr. GRPO keeps PPO's clip. It removes two things outside the rule: the division of advantages by the group's
    # standard deviation (`maths.rules.group_advantages`), and of each response by its length (`aggregate`).
    _grpo(
        "dr_grpo",
        "Dr. GRPO",
        paper="2503.20783",
    ),
    _mask(
        "dppo",
        "DPPO",
        Row("divergence"),
        paper="2602.04879",
        needs=frozenset({DIVERGENCE}),
        **_drawn("#E05759", VERMILLION, LONG, "s"),
    ),
    _mask(
        "pdm",
        "PDM",
        Row("divergence, by its own direction"),
        paper="2607.10848",
        needs=frozenset({DIVERGENCE, DRIFT}),
    ),
    _cppo(
        "cppo",
        "CPPO",
        Row("divergence", position="yes", prefix="yes"),
        **_drawn("#0052D9", BLUE),
    ),
    _cppo(
        "cppo_no_position_weight",
        "CPPO without position weight",
        Row("divergence", prefix="yes"),
        fixed={"w_min": 1.0, "span": None},
        **_drawn("#00A3A1", GREEN, SHORT, "^"),
    ),
    _cppo(
        "cppo_no_prefix_budget",
        "CPPO without prefix budget",
        Row("divergence", position="yes"),
        fixed=_NO_BUDGET,
        **_drawn("#7B4FB5", PURPLE, DASH_DOT, "v"),
    ),
    # Tests whether the order of the weights matters, or only their distribution.
    _cppo(
        "cppo_no_prefix_budget_shuffled",
        "CPPO without prefix budget, shuffled weights",
        Row("divergence", position="shuffled"),
        fixed=_NO_BUDGET,
        needs=_BUDGET | {PERMUTATION},
        **_drawn("#E377C2", BLACK, DOTS, "D"),
    ),
    # The lightest weight first. If early tokens are decisive, it should do worse than shuffled and ordered weights.
    _cppo(
        "cppo_no_prefix_budget_reversed",
        "CPPO without prefix budget, reversed weights",
        Row("divergence", position="reversed"),
        fixed=_NO_BUDGET | {"reverse": True},
        **_drawn("#17BECF", ORANGE, LONG_SHORT, "<"),
    ),
    # A control: as many tokens of each response are dropped, at random places.
    _cppo(
        "cppo_random_mask",
        "random mask of CPPO's size",
        Row("divergence", position="yes", prefix="yes", beyond="dropped at random places"),
        fixed={"random_mask": True},
        needs=_BUDGET | {PERMUTATION},
        **_drawn("#A0A0A0", BLACK, LONG_SHORT, "x"),
    ),
    _mask(
        "cppo_soft",
        "CPPO soft gate",
        Row("divergence", position="yes", prefix="yes", beyond="weighed less"),
        paper=CPPO_PAPER,
        needs=_BUDGET,
        **_drawn("#8C8C00", BLACK, SHORT, "P"),
    ),
    _trm(
        "trm_max",
        "TRM-Max",
        Row("largest divergence", per="response"),
        fixed={"delta_avg": math.inf},
        **_drawn("#B5651D", PURPLE, SHORT, "v"),
    ),
    _trm(
        "trm_avg",
        "TRM-Avg",
        Row("mean divergence", per="response"),
        fixed={"delta_max": math.inf},
        **_drawn("#D9A521", ORANGE, DASH_DOT, "^"),
    ),
    _trm(
        "trm_max_avg",
        "TRM-Max&Avg",
        Row("largest, mean divergence", per="response"),
        **_drawn("#9C755F", BLACK, DASH_DOTS, "P"),
    ),
    _clip(
        "cispo",
        "CISPO",
        Row("ratio", beyond="capped"),
        paper="2506.13585",
        **_drawn("#B07AA1", SKY, LONG_SHORT, "D"),
    ),
    _clip(
        "minpro",
        "MinPRO",
        Row("ratio x least prefix ratio", prefix="yes", beyond="capped"),
        paper="2601.22718",
        needs=_OF_RESPONSE,
        **_drawn("#282828", BLACK, DOTS, "<"),
    ),
    _response(
        "gspo",
        "GSPO",
        Row("mean ratio", per="response", beyond="clipped"),
        paper="2507.18071",
    ),
    _response(
        "luspo",
        "LUSPO",
        Row("mean ratio", per="response", beyond="clipped"),
        paper="2602.05261",
    ),
    _response(
        "geo_mean",
        "GMPO",
        Row("ratio within a mean", beyond="clipped"),
        paper="2507.20673",
    ),
    _clip(
        "sapo",
        "SAPO",
        Row("ratio", beyond="weighed less"),
        paper="2511.20347",
    ),
    _clip(
        "pspo",
        "PSPO",
        Row("nothing", beyond="weighed less"),
        paper="2509.21282",
    ),
    _clip(
        "estr",
        "ESTR",
        Row("ratio; log-ratio for its entropy", beyond="clipped; masked"),
        paper="2607.22186",
        needs=frozenset({ENTROPY}),
    ),
    _mask(
        "icepop",
        "IcePop",
        Row("ratio, both directions"),
        paper="2510.18855",
    ),
    # prime-rl's loss, without a paper.
    _mask(
        "ipo",
        "IPO",
        Row("probability, both directions", beyond="masked, pulled back"),
    ),
    # From a blog: ringtech.notion.site/kpop.
    _mask(
        "kpop",
        "KPop",
        Row("KL both ways, both directions"),
    ),
    _clip(
        "drpo",
        "DRPO",
        Row("probability", beyond="weighed less, pulled back"),
        paper="2606.09821",
    ),
    _clip(
        "cfpo",
        "CFPO",
        Row("ratio", beyond="weighed less, pulled back"),
        paper="2601.22801",
    ),
    _response(
        "m2po",
        "M2PO",
        Row("mean squared log-ratio", per="minibatch"),
        paper="2510.01161",
        needs=frozenset({MINIBATCH, RESPONSE}),
    ),
    # These three are from a blog: richardli.xyz/rl-collapse.
    _response(
        "seq_tis",
        "Seq-TIS",
        Row("product of ratios", per="response", beyond="capped"),
    ),
    _response(
        "seq_mis",
        "Seq-MIS",
        Row("product of ratios", per="response"),
    ),
    _response(
        "geo_mask",
        "Geo-Mask",
        Row("mean ratio", per="response"),
    ),
    _response(
        "opsm",
        "Off-policy sequence mask",
        Row("ratio; mean ratio if A < 0", per="token; response", beyond="clipped; masked"),
        paper="2512.02556",
    ),
    _response(
        "topr",
        "TOPR",
        Row("product of ratios if A < 0", per="response", beyond="capped"),
        paper="2503.14286",
    ),
    _response(
        "vespo",
        "VESPO",
        Row("product of ratios", per="response", beyond="weighed less"),
        paper="2602.10693",
    ),
    _response(
        "vaco",
        "VACO",
        Row("mean distance of the ratio from 1", per="response"),
        paper="2603.01365",
    ),
)

_FIXED_BUDGET = _drawn("#FF7F0E", GREEN, DASH_DOT, "v")
_LOW_W_MIN = _drawn("#5C6B73", BLACK, DOTS, "^")
# Names, in sweeps and in the paper's curves, of a rule with other constants or another divergence.
SETTINGS = (
    Variant(name="cppo_kl", title="CPPO, KL", **_drawn("#2E8B57", PURPLE, SHORT, "D")),
    Variant(name="cppo_tv", title="CPPO, TV"),
    Variant(name="cppo_topk_tv", title="CPPO, Top-K TV"),
    Variant(
        name="cppo_binary_tv",
        title="CPPO, Binary TV",
        **_drawn("#1FA2C4", PURPLE, DOTS, "<"),
    ),
    Variant(name="cppo_fixed_budget", title="CPPO, fixed budget rate", **_FIXED_BUDGET),
    Variant(name="ipo_wide", title="IPO, 0.3 without penalty"),
    Variant(name="cppo_low_w_min", title="CPPO, lower w_min", **_LOW_W_MIN),
    # The paper's curves name these two by their constants.
    Variant(name="cppo_db0.03_w0.8", title="CPPO, delta_b 0.03, w_min 0.8", **_FIXED_BUDGET),
    Variant(name="cppo_db0.02_w0.6", title="CPPO, delta_b 0.02, w_min 0.6", **_LOW_W_MIN),
    Variant(name="no_trust_region", title="no trust region"),
)


# Looking up a rule by its name.

GROUP = "cppo_lab.rules"  # of entry points
VARIABLE = "CPPO_RULES"  # comma-separated import paths
ENTRY_POINT = "entry point"

RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in BUILT_IN})
NAMED: Mapping[str, Variant] = MappingProxyType({variant.name: variant for variant in (*BUILT_IN, *SETTINGS)})
# The rows of the paper's main table, in its order.
METHODS: tuple[Rule, ...] = tuple(
    RULES[name] for name in ("grpo", "minpro", "cispo", "dppo", "trm_max", "trm_avg", "cppo")
)
# The paper's colours of them.
METHOD_COLOURS: Mapping[str, str] = MappingProxyType(
    {rule.name: rule.stroke.colour for rule in METHODS if rule.stroke}
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


def from_environment(name: str, variable: str = VARIABLE) -> str | None:
    """The import path of a rule in the user's environment, i.e. the entry of CPPO_RULES that ends in `:name`; or what
    else another `variable` names.

    Raises UserError for an entry of the variable that is not an import path.
    """
    return next((path for path in reversed(_paths_in(variable)) if path.rpartition(":")[2] == name), None)


def _paths_in(variable: str) -> list[str]:
    paths = [text.strip() for text in os.environ.get(variable, "").split(",") if text.strip()]
    for path in paths:
        if not PATH.fullmatch(path):
            raise UserError(f"{variable}: {path!r} must be package.module:function; commas separate several")
    return paths


def path_of_user(name: str) -> str | None:
    """Where a rule of another package is, as in a run's configuration, by the environment or an installed package."""
    return from_environment(name) or (ENTRY_POINT if name in entry_points(GROUP) else None)


def trusted_path(name: str, path: str | None) -> str | None:
    """The import path of a rule for which a run's answers name `path`: the user's own for this name, since anybody who
    can write to the store could name any code.

    Raises UserError for a rule of another package that neither an installed package nor CPPO_RULES names.
    """
    if path is None:
        return None
    path_here = path_of_user(name)
    if path_here is None and path not in _paths_in(VARIABLE):
        raise UserError(
            f"rule {name!r} is code that the run's answers say is at {path!r}, which is not run on their word: if you "
            f"trust it, set {VARIABLE}={path}"
        )
    return path_here or path


def known(name: str) -> Variant | None:
    """The display record for a name, from the product or from a package that is installed or named in CPPO_RULES.

    None for any other name, or if the package cannot be imported; the name itself is then displayed.
    """
    if name in NAMED:
        return NAMED[name]
    try:
        path = path_of_user(name)
        return rule_of(name, path) if path else None
    except UserError:
        return None


@cache
def _foreign(name: str, path: str) -> Rule:
    target: Any = load(path, "rule.path")
    if isinstance(target, Rule):
        if target.name != name:
            raise UserError(
                f"rule.path={path!r} is the rule {target.name!r}, not {name!r}: one of the names is wrong"
            )
        return target
    if not callable(target):
        raise UserError(
            f"rule.path={path!r} is a {type(target).__name__}: name a function or a cppo_lab.rules.Rule"
        )
    return Rule(name=name, function=target, needs=frozenset({RESPONSE}))


# Which line each variant of a sweep has: the same for figures, report pages and MLflow.


# Of the paper's palette, for variants without a stroke of their own.
OTHERS = tuple(
    Stroke(colour, dash)
    for dash in ((), (5.0, 2.0), (1.0, 1.5))
    for colour in (
        *("#00A3A1", "#7B4FB5", "#E377C2", "#8C8C00", "#17699B", "#FF7F0E", "#9C755F", "#5C6B73"),
        *("#2E8B57", "#1FA2C4"),
    )
)


def assigned(strokes: Mapping[str, Stroke | None], others: Sequence[Stroke]) -> dict[str, Stroke]:
    """A stroke for each variant: its own, if any, else the next of the `others` that is free."""
    free = cycle([stroke for stroke in others if stroke not in strokes.values()] or others)
    return {name: stroke or next(free) for name, stroke in strokes.items()}


def colours(variants: Sequence[str]) -> dict[str, str]:
    """The colour of each variant of a sweep in the paper's palette; `variants`: all of the sweep, as declared."""
    strokes = {name: getattr(known(name), "stroke", None) for name in variants}
    return {name: stroke.colour for name, stroke in assigned(strokes, OTHERS).items()}
