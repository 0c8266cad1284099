"""The exported conformance tests: every built-in rule passes them, and they can fail."""

import pytest
import torch

from cppo_lab.maths.tokens import RuleOutput
from cppo_lab.rules import DIVERGENCE, RESPONSE, RULES, Rule
from cppo_lab.testing import RuleTests, check_rule
from tests.maths.maths_batches import CONSTANTS, PULL_BACK, WITHOUT_DIVERGENCE


class TestBuiltIn(RuleTests):
    @pytest.fixture(autouse=True, params=RULES)
    def chosen(self, request: pytest.FixtureRequest) -> None:
        self.rule, self.constants = RULES[request.param], CONSTANTS[request.param]
        self.pulls_back = request.param in PULL_BACK
        # SAPO's objective on policy is 2 A / tau with a gate of slope 1; its gradient is A nevertheless.


def test_the_rules_without_a_divergence() -> None:
    assert {name for name, rule in RULES.items() if DIVERGENCE not in rule.needs} == set(WITHOUT_DIVERGENCE)


def of_dppo(change):
    """DPPO's record with its output changed."""
    plain = RULES["dppo"].load

    def changed(tokens, *, delta):
        return change(plain(tokens, delta=delta), tokens.logp, tokens.valid)

    return Rule(name="changed", function=changed, needs=frozenset({DIVERGENCE}))


def centred(output: RuleOutput, logp: torch.Tensor, valid: torch.Tensor) -> RuleOutput:
    """A mean over the batch: a response depends on the others."""
    return output._replace(objective=torch.where(valid, output.objective - output.objective.mean(), 0.0))


def of_the_first_token(output: RuleOutput, logp: torch.Tensor, valid: torch.Tensor) -> RuleOutput:
    """A weight by place, of which the record says nothing."""
    weights = torch.linspace(1, 0.5, logp.shape[1], dtype=output.keep.dtype)
    return output._replace(objective=output.objective * weights, keep=output.keep * weights)


def attached(output: RuleOutput, logp: torch.Tensor, valid: torch.Tensor) -> RuleOutput:
    return output._replace(keep=output.keep * (1 + 0 * logp))


def at_padding(output: RuleOutput, logp: torch.Tensor, valid: torch.Tensor) -> RuleOutput:
    return output._replace(keep=torch.ones_like(output.keep))


@pytest.mark.parametrize("change", [centred, of_the_first_token, attached, at_padding])
def test_a_faulty_rule_fails(change) -> None:
    check_rule(of_dppo(lambda output, logp, valid: output), {"delta": 0.1})
    with pytest.raises(AssertionError):
        check_rule(of_dppo(change), {"delta": 0.1})


def test_constants_that_do_nothing_show_nothing() -> None:
    with pytest.raises(AssertionError, match="tighten them"):
        check_rule(RULES["dppo"], {"delta": 0.9})


def test_a_need_that_is_not_declared_fails() -> None:
    for needs in (frozenset(), frozenset({RESPONSE})):
        with pytest.raises(AssertionError, match="without a divergence"):
            check_rule(Rule(name="dppo", function="cppo_lab.maths.masks:dppo", needs=needs), {"delta": 0.1})
