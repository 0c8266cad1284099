"""No golden array goes unnoticed: each is an input, compared by a test, or listed here with the reason."""

from fnmatch import fnmatch

import tests.maths.test_maths_golden_parts as parts
import tests.maths.test_maths_golden_rules as rules
from tests.maths.maths_golden import KEYS, keys

COMPARED = {
    *rules.MASK_KEYS,
    *rules.TOKEN_KEYS,
    *rules.LOSS_KEYS,
    *parts.DIVERGENCE_KEYS,
    *parts.EXTREME_KEYS,
    *parts.WEIGHT_KEYS,
    *parts.BUDGET_KEYS,
    *parts.SCORE_KEYS,
    *parts.SAPO_KEYS,
    *parts.METRIC_KEYS,
    *parts.ADVANTAGE_KEYS,
}
INPUTS = {*keys("in"), "extreme/in/mu", "extreme/in/pi", "extreme/in/tokens"}
NOT_COMPARED = {
    "*/sapo": "SAPO's own objective: no rule of the registry (its gate is compared)",
    "*/sapo/*": "as above",
    "*_logp_cap*": "stopgrad(min(rho, cap)) M A log pi, the form of a release: no rule of the registry",
    "theory/*": "bounds and the enumerated process: not part of the rules",
}


def test_every_key_is_compared_or_listed() -> None:
    left = set(KEYS) - COMPARED - INPUTS
    unlisted = [key for key in sorted(left) if not any(fnmatch(key, pattern) for pattern in NOT_COMPARED)]
    assert not unlisted


def test_the_list_of_exceptions_is_not_stale() -> None:
    left = set(KEYS) - COMPARED - INPUTS
    assert not [pattern for pattern in NOT_COMPARED if not any(fnmatch(key, pattern) for key in left)]
