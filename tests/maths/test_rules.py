"""Every rule: conformance, loops, reductions to other rules, statistics, and what it refuses."""

import math
import random
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from cppo_lab import PARTS_FOLDER, schema
from cppo_lab.errors import NotFinite
from cppo_lab.maths.masks import masked
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import RuleOutput, Tokens, summarise
from cppo_lab.rules import DIVERGENCE, PERMUTATION, RESPONSE, RULES, Rule
from cppo_lab.sweep.compose import compose
from cppo_lab.testing import RuleTests, check_rule
from tests.conftest import user_error
from tests.maths.maths_batches import (
    CONSTANTS,
    PULL_BACK,
    WITHOUT_DIVERGENCE,
    TokenBatch,
    apply,
    constants,
    differentiated,
    fields,
    random_batch,
)
from tests.oracles import rules as oracle

INF, NAN = math.inf, math.nan
EVERY = {"masked_fraction", "ratio_mean"}
# Statistics of some rules besides what all of them report (maths/tokens.py).
BUDGET = ("cppo", "cppo_no_position_weight", "cppo_random_mask", "cppo_soft")
THRESHOLD = ("dppo", "pdm", *(name for name in RULES if name.startswith("cppo")))
CLIPPED = (
    "grpo", "ppo", "dr_grpo", "cispo", "minpro", "gspo", "geo_mean", "seq_tis", "opsm", "luspo", "topr", "estr",
)  # fmt: skip


class TestBuiltIn(RuleTests):
    @pytest.fixture(autouse=True, params=RULES)
    def chosen(self, request: pytest.FixtureRequest) -> None:
        self.rule, self.constants = RULES[request.param], CONSTANTS[request.param]
        self.pulls_back = request.param in PULL_BACK
        self.on_policy_identity = request.param not in (
            "luspo",
            "pspo",
        )  # times the length, times 1 - smoothing


SEEN: list[float] = []


def of_the_first_batch(tokens: Tokens, *, delta: float) -> RuleOutput:
    """A threshold that the first batch of a process sets for all later ones."""
    SEEN.append(float(tokens.required_divergence.max()))
    return masked(tokens, token_fails=(tokens.required_divergence > delta * SEEN[0]) & tokens.moves_away)


def that_clamps_in_place(tokens: Tokens, *, delta: float) -> RuleOutput:
    fails = (tokens.required_divergence > delta) & tokens.moves_away
    tokens.required_divergence.clamp_(max=delta)
    return masked(tokens, token_fails=fails)


def that_seeds_torch(tokens: Tokens, *, delta: float) -> RuleOutput:
    torch.manual_seed(0)
    return masked(tokens, token_fails=(tokens.required_divergence > delta) & tokens.moves_away)


def dppo_with(**changes: Callable[[RuleOutput], Any]) -> Callable[..., RuleOutput]:
    """DPPO with other fields of its output."""

    def rule(tokens: Tokens, *, delta: float) -> RuleOutput:
        output = RULES["dppo"].apply(tokens, delta=delta)
        return output._replace(**{field: change(output) for field, change in changes.items()})

    return rule


# The conformance test that finds it, a rule, and what the test says.
LEARNED, CALL = "keep_and_statistics_say_what_is_learned", "a_call_leaves_nothing_behind"
NOTHING = "gradients_are_finite_and_zero_where_there_is_nothing_to_learn"
EMPTY, CLOSE = "a_batch_without_tokens_gives_zeros", "Tensor-likes are not close"
FAULTS: list[tuple[str, Callable[..., RuleOutput], str]] = [
    (CALL, of_the_first_batch, "it depends on earlier calls"),
    (CALL, that_clamps_in_place, r"it changes tokens\.divergence"),
    (CALL, that_seeds_torch, "it uses torch's global random numbers"),
    (EMPTY, dppo_with(keep=lambda o: o.keep * (random.random() > -1)), "it changes .*the state of random"),
    ("shapes_and_dtypes", dppo_with(keep=lambda o: 2 * o.keep), r"keep leaves \[0, 1\]"),
    (NOTHING, dppo_with(keep=lambda o: 0 * o.keep), "a masked token has a gradient"),
    (NOTHING, dppo_with(keep=lambda o: torch.ones_like(o.keep)), "padding counts"),
    (
        LEARNED,
        dppo_with(objective=lambda o: o.objective * (o.keep.cumsum(1) > 1)),
        "a kept token has no gradient",
    ),
    (LEARNED, dppo_with(stats=lambda o: o.stats | {"masked": o.stats["masked"] / 2}), "not masked of keep"),
    (LEARNED, dppo_with(stats=lambda o: {"tokens": o.stats["tokens"]}), "the statistic responses is missing"),
    (LEARNED, dppo_with(tests=lambda o: {"mine": torch.zeros_like(o.keep).bool()}), "dropped by no test"),
    (
        EMPTY,
        dppo_with(stats=lambda o: o.stats | {"divergence_max": o.stats["divergence_max"] + 1}),
        "statistics of nothing",
    ),
    (
        "only_logp_carries_a_gradient",
        dppo_with(keep=lambda o: o.keep * (1 + 0 * o.objective)),
        "keep carries",
    ),
    ("on_policy_gradient_is_the_advantage", dppo_with(objective=lambda o: 2 * o.objective), CLOSE),
    ("padding_does_not_matter", dppo_with(objective=lambda o: o.objective / o.keep.shape[1]), CLOSE),
    ("micro_batches_make_the_whole", dppo_with(objective=lambda o: o.objective - o.objective.mean()), CLOSE),
    ("needs_are_declared", dppo_with(objective=lambda o: o.objective * o.keep.cumsum(1)), CLOSE),
    (
        "a_centred_rule_weighs_each_token_alone",
        dppo_with(objective=lambda o: o.objective * o.objective.detach().sum(1, keepdim=True)),
        CLOSE,
    ),
]


@pytest.mark.parametrize("test, rule, said", FAULTS)
def test_a_faulty_rule_fails_the_conformance_test_that_names_its_fault(
    test: str, rule: Callable[..., RuleOutput], said: str
) -> None:
    checked = RuleTests()
    checked.rule = Rule(name="theirs", function=rule, needs=frozenset({DIVERGENCE}))
    checked.constants = {"delta": 0.1}
    with pytest.raises(AssertionError, match=said):
        getattr(checked, f"test_{test}")()


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"stats": lambda o: []}, r"stats that are no mapping of names: \[\]"),
        ({"tests": lambda o: None}, "tests that are no mapping of names: None"),
        ({"tests": lambda o: {1: o.keep > 0}}, "tests that are no mapping of names: {1: "),
        ({"tests": lambda o: {"mine": o.keep}}, r"the test 'mine' of shape .*float64"),
    ],
)
def test_an_output_of_another_form_is_refused(changes: dict[str, Callable[..., Any]], said: str) -> None:
    with user_error(f"rule 'theirs' returns {said}.*: return a RuleOutput"):
        check_rule(Rule(name="theirs", function=dppo_with(**changes), needs={DIVERGENCE}), {"delta": 0.1})


def test_a_record_that_is_wrong_fails_the_conformance_tests() -> None:
    check_rule(Rule(name="theirs", function=dppo_with(), needs=frozenset({DIVERGENCE})), {"delta": 0.1})
    with pytest.raises(AssertionError, match="tighten them"):
        check_rule(RULES["dppo"], {"delta": 0.9})
    for needs in (frozenset(), frozenset({RESPONSE})):
        with pytest.raises(AssertionError, match="without a divergence"):
            check_rule(Rule(name="dppo", function="cppo_lab.maths.masks:dppo", needs=needs), {"delta": 0.1})


PUBLISHED: dict[str, dict[str, float]] = {
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "geo_mean": {"log_clip_low": 0.4, "log_clip_high": 0.4},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "icepop": {"ratio_low": 0.5, "ratio_high": 5.0},
    "ipo": {"delta": 0.1, "kl_tau": 0.001},
    "kpop": {"delta": 0.1},
    "drpo": {"delta": 12.5},
    "m2po": {"m2": 0.04},
    "seq_tis": {"ratio_high": 2.0},
    "seq_mis": {"ratio_low": 0.5, "ratio_high": 2.0},
    "geo_mask": {"ratio_low": 0.999, "ratio_high": 1.001},
    "opsm": {"delta": 1e-4, "clip_low": 0.2, "clip_high": 0.28},
    "vespo": {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
    "vaco": {"delta": 0.2},  # ours: none is published
    "pspo": {"smoothing": 0.1},
    "cfpo": {"delta": 0.2},
    "topr": {"ratio_high": 1.0},
    "estr": {"tau": 1.0, "clip_low": 0.2, "clip_high": 0.28},
    "luspo": {"clip_low": 3e-4, "clip_high": 4e-4},
}


def test_the_files_hold_the_published_constants() -> None:
    newer = {"name": "ipo", "delta": 0.3, "kl_tau": 0.0}  # prime-rl's since its pull request 3586
    files = {name: {"name": name} | constants for name, constants in PUBLISHED.items()} | {"ipo_wide": newer}
    folder = PARTS_FOLDER / "conf" / "rule"
    assert {name: yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in files} == files


def test_dr_grpo_brings_its_companion_settings_and_they_can_be_overridden() -> None:
    run = compose(["rule=dr_grpo"]).run
    assert not run.advantage.normalize_std and run.training.aggregation == "seq-mean-token-sum-norm"
    other = compose(["rule=dr_grpo", "training.aggregation=token-mean"]).run
    assert other.training.aggregation == "token-mean"
    assert RULES["dr_grpo"].function == RULES["ppo"].function
    assert run.rule.parameters() == compose(["rule=ppo"]).run.rule.parameters()


def extreme_batch(seed: int) -> TokenBatch:
    """Drift from none to e^8, probabilities from 1e-12 to 1, tokens of one response with both signs of A."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    rows, width = 6, 9
    scale = 10 ** (1.2 - 4 * uniform(rows, 1))
    logp = -28 * uniform(rows, width) ** 4
    rollout_logp = (logp + scale * (uniform(rows, width) - 0.5)).clamp_max(-1e-9)
    advantages = (uniform(rows, width) - 0.5).round(decimals=1)
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    return TokenBatch(
        logp, rollout_logp, advantages, torch.arange(width) < lengths[:, None], uniform(rows, width)
    )


@pytest.mark.parametrize("make", [random_batch, extreme_batch])
@pytest.mark.parametrize("name", PUBLISHED)
def test_rule_agrees_with_the_loop(name: str, make: Callable[[int], TokenBatch]) -> None:
    loop = getattr(oracle, name)
    for seed, parameters in product(range(12), (PUBLISHED[name], CONSTANTS[name])):
        batch = make(seed)
        given, lengths = fields(name, batch), batch.valid.sum(1).tolist()
        output, gradient = differentiated(name, batch, **parameters, **given)
        parts = *batch[:3], *given.values()
        responses = [tuple(part[row, :n].tolist() for part in parts) for row, n in enumerate(lengths)]
        expected = (
            loop(responses, **parameters) if name == "m2po" else [loop(r, **parameters) for r in responses]
        )
        for row, length in enumerate(lengths):
            for place, actual in enumerate((output.objective, gradient, output.keep)):
                wanted = [token[place] for token in expected[row]]
                assert actual[row, :length].tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
                assert not actual[row, length:].any()


@pytest.mark.parametrize("name", RULES)
def test_a_rule_reports_the_names_that_apply_to_it(name: str) -> None:
    """A divergence that decides nothing enters the statistics alone."""
    batch = random_batch(0)
    plain = {"clip_fraction"} if name in CLIPPED else set()
    plain |= {"token_threshold_share"} if name in THRESHOLD else set()
    plain |= {"prefix_budget_share", "delta_b_mean"} if name in BUDGET else set()
    if name == "cppo_random_mask":  # no test drops its tokens
        plain = {"delta_b_mean"}
    result = apply(name, *batch, **constants(name, batch))
    names = EVERY | plain | {"divergence_mean", "divergence_max"}
    assert summarise(result.stats).keys() == names
    assert all(schema.is_known_metric(f"rule/{statistic}") for statistic in names)
    if name in WITHOUT_DIVERGENCE:
        without = apply(name, *batch[:4], **constants(name, batch))
        assert torch.equal(result.objective, without.objective)
        assert summarise(without.stats).keys() == EVERY | plain
    else:
        with pytest.raises(ValueError, match=rf"divergence=None: rule '{name}' needs"):
            apply(name, *batch[:4], **constants(name, batch))


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0)])
@pytest.mark.parametrize("name", RULES)
def test_a_batch_without_rows_or_columns_gives_zeros_and_no_nan(name: str, shape: tuple[int, int]) -> None:
    """As `Tokens.packed` has it of responses without a token. Of padding alone: the conformance tests."""
    zeros = torch.zeros(shape, dtype=torch.float64)
    batch = TokenBatch(zeros, zeros, zeros, zeros.bool(), zeros)
    output, gradient = differentiated(name, batch)
    assert output.objective.shape == output.keep.shape == gradient.shape == shape
    assert all(number == 0 for number in summarise(output.stats).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RULES)
def test_ratios_that_overflow_are_named_or_bounded(name: str, dtype: torch.dtype) -> None:
    """Never NaN, never an infinite loss in silence: finite log-probabilities may be too far apart for a ratio, or for
    its square.
    """
    for far in (-2000.0, -400.0, -200.0, -60.0, 2000.0):
        for sign in (1.0, -1.0):
            batch = random_batch(0, dtype=dtype)
            batch.rollout_logp[0, 2] = far
            batch.divergence[0, 2] = 1.0
            batch = batch._replace(advantages=torch.full_like(batch.logp, sign))
            try:
                output, gradient = differentiated(name, batch)
            except NotFinite as error:
                assert re.match(
                    r"the (squared )?probability ratio of kept token \[0, \d+\] overflows \(log_ratio \d+.*\): see "
                    r"|the weight of response 0 overflows \(its log-ratios add up to \d+",
                    str(error),
                )
                dropped = name in (
                    *THRESHOLD,
                    "estr",
                    "grpo",
                    "icepop",
                    "ipo",
                    "kpop",
                    "m2po",
                    "seq_mis",
                    "geo_mask",
                )
                assert sign < 0 or name == "cppo_soft" or not dropped
            else:
                parts = output.objective, output.keep, gradient
                assert all(bool(part.isfinite().all()) for part in parts)


@pytest.mark.parametrize("name, bounds", [("seq_mis", {"ratio_low": 0.0}), ("seq_tis", {})])
def test_an_open_bound_with_a_weight_that_overflows_is_an_error(name: str, bounds: dict[str, float]) -> None:
    batch = random_batch(0, dtype=torch.float32)
    batch.rollout_logp[0, 2] = -200.0
    batch.advantages[0] = 1.0
    with pytest.raises(NotFinite, match=r"the weight of response 0 overflows"):
        apply(name, *batch, **bounds, ratio_high=INF)
    batch.advantages[0] = 0.0
    assert apply(name, *batch, **bounds, ratio_high=INF).objective.isfinite().all()


@pytest.mark.parametrize("name", [name for name in RULES if PERMUTATION not in RULES[name].needs])
def test_narrower_numbers_take_the_decisions_of_wider_ones(name: str) -> None:
    """bfloat16 is computed in float32; float32 decides as float64 but where a decision hangs on rounding."""
    for seed in range(6):
        narrow, single = (random_batch(seed, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
        wide = TokenBatch(*(part if part.dtype == torch.bool else part.float() for part in narrow))
        given = fields(name, wide)
        first, second = (apply(name, *batch, **CONSTANTS[name], **given) for batch in (narrow, wide))
        assert torch.equal(first.objective, second.objective) and torch.equal(first.keep, second.keep)
        wide = TokenBatch(*(part if part.dtype == torch.bool else part.double() for part in single))
        (small, gradient), (large, exact) = (differentiated(name, batch) for batch in (single, wide))
        torch.testing.assert_close(small.keep, large.keep.float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(small.objective, large.objective.float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, exact.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_tie_keeps_the_token_with_its_whole_gradient(sign: float) -> None:
    """With log-ratios that float64 holds exactly."""

    def kept(name: str, logp: float, rollout_logp: float, **parameters: float) -> bool:
        logps = (torch.full((1, 2), value, dtype=torch.float64) for value in (logp, rollout_logp))
        advantages = torch.full((1, 2), sign, dtype=torch.float64)
        batch = TokenBatch(*logps, advantages, torch.tensor([[True, False]]), torch.zeros_like(advantages))
        output, gradient = differentiated(name, batch, **parameters)
        assert logp != rollout_logp or gradient.tolist() == [[sign, 0]]
        return output.keep.tolist() == [[1, 0]]

    for name, names in (
        ("grpo", ("clip_low", "clip_high")),
        ("gspo", ("clip_low", "clip_high")),
        ("geo_mean", ("log_clip_low", "log_clip_high")),
    ):
        assert kept(name, 0.0, 0.0, **dict.fromkeys(names, 0.0)), name
    for name in ("icepop", "seq_mis", "geo_mask"):
        assert kept(name, -2.0, -2.0, ratio_low=1.0, ratio_high=1.0), name
    assert kept("opsm", -2.0, -1.5, delta=0.5, clip_low=1.0, clip_high=0.0)
    distance = torch.full((1, 2), 0.5, dtype=torch.float64).expm1()[0, 0].item()
    assert kept("vaco", -1.5, -2.0, delta=distance)
    assert kept("vaco", -1.5, -2.0, delta=0.99 * distance) == (sign < 0)
    assert kept("m2po", -2.0, -1.5, m2=0.25)
    assert kept("m2po", -2.0, -1.5, m2=0.2499) == (sign > 0)
    assert kept("ipo", 0.0, math.log(0.5), delta=0.5, kl_tau=0.0)


def test_clipped_tokens_are_counted() -> None:
    """Of grpo with both clips and the dual one, and of rules that clip a response: geometric means 2, 1.1, 0.5, 2."""
    ratio = torch.tensor([[4, 1, 9], [1.21, 1, 9], [0.25, 1, 9], [4, 1, 9]], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -1.0, -3.0]).double()[:, None].expand(4, 3)
    valid = torch.tensor([True, True, False]).expand(4, 3)
    batch = ratio.log(), torch.zeros_like(ratio), advantages, valid
    for name, parameters, count in (
        ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, 4),
        ("grpo", {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}, 3),
        ("seq_tis", {"ratio_high": 2.0}, 4),
    ):
        assert int(apply(name, *batch, **parameters).stats["clipped"]) == count, name


def test_pdm_with_the_direction_of_dppo_is_dppo() -> None:
    for seed in range(4):
        batch = random_batch(seed, rows=8)
        one, gradient = differentiated("pdm", batch, delta=0.1, **fields("pdm", batch))
        other, expected = differentiated("dppo", batch, delta=0.1)
        assert torch.equal(one.keep, other.keep) and torch.equal(one.objective, other.objective)
        assert torch.equal(gradient, expected)


REFUSED = [
    ("pspo", {"smoothing": 1.0}, r"smoothing=1.0 must lie in \[0, 1\): pass 0"),
    ("cppo", {"w_min": 0.0}, r"w_min=0.0 must lie in \(0, 1\]"),
    ("cppo", {"delta_b": 0.0}, r"delta_b=0.0 must be a positive number \(math.inf switches it off\)"),
    ("cppo", {"delta_b_mode": "auto"}, r"mode='auto' is unknown: choose one of \['fixed', 'adaptive'\]"),
    ("cppo", {"span": 3}, r"span=3 is shorter than T=12"),
    ("cppo_no_prefix_budget", {"delta": INF}, r"delta=inf must be a positive number"),
    ("cppo_soft", {"gate": "sapo"}, r"gate='sapo' is unknown: choose one of \['inverse', 'sapo_adm"),
    ("grpo", {"clip_high": -0.1}, r"clip_high=-0.1 must be a finite number >= 0"),
    ("cispo", {"clip_low": -0.5}, r"clip_low=-0.5 must lie in \[0, 1\], or be None"),
    ("dppo", {"ratio_cap": 0.5}, "ratio_cap=0.5 must be at least 1"),
    ("dppo", {"log_ratio_clamp": 0.0}, "log_ratio_clamp=0.0 must be a positive number"),
    ("icepop", {"ratio_low": 1.1}, r"ratio_low=1.1 must lie in \[0, 1\]"),
]
# No constant of any rule may be NaN.
NAN_ERRORS = [
    (name, {key: NAN}, f"{key}=nan must")
    for name, given in CONSTANTS.items()
    for key in given
    if key != "delta_b_mode"
]


@pytest.mark.parametrize("name, change, message", REFUSED + NAN_ERRORS)
def test_constant_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    batch = random_batch(0)
    with pytest.raises(ValueError, match=message):
        apply(name, *batch, **{**constants(name, batch), **change})


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rule='cpo' is unknown: choose one of \['cfpo', 'cispo', 'cppo'"):
        get_rule("cpo")
