"""Plain values set in copies give what Hydra alone gives, and refuse what it refuses."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.errors import UserError
from cppo_lab.spec import fingerprint
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.compose.settings import base
from cppo_lab.sweep.compose.settings import settings as fast
from cppo_lab.sweep.compose.through_hydra import composed as through_hydra
from cppo_lab.sweep.compose.through_hydra import dotted, listed, parsed
from cppo_lab.sweep.groups import groups
from tests.fuzz.mangling import fuzz

BASES = [
    [],
    ["model=mini_small_base", "rule=trm_max"],
    ["core=verl", "model=qwen3_30b_a3b_base", "rule=cppo_kl"],
    ["rule=dr_grpo", "divergence=binary_tv"],
    ["core=verl", "rule=verl_dro", "model=tiny_qwen3"],
]
VALUES = [
    "1", "-3", "0.5", "1e-4", "1_000", "inf", "nan", "true", "null", "word", "two words", "'quo ted'", "[1,2]",
    "[]", "[a,[b]]", "{a: 1}", "1,2", "range(1,3)", "${seed}", "${rule.delta}", "x${seed}", "???", "'${seed}'", "",
    "[${seed}]", "\\${seed}", "12345678901234567890", "'null'", "'1'", "0x1", "[1",
]  # fmt: skip
ODD_KEYS = [
    "rule", "rule.name.x", "training.t_stopp", "layout.verl", "layout.verl.x", "+rule.new", "++rule.delta", "+seed",
    "~rule.delta", "~seed", "rule@x", "data.benchmarks.0", "layout.megatron.tensor", "hydra.verbose", "trust_region",
]  # fmt: skip
KEYS = sorted({name for choices in BASES for name in dotted(through_hydra(choices, resolved=True))})
GROUPS = [f"{group}={option}" for group, options in groups().items() for option in options]
KEY_VALUES = st.builds("{}={}".format, st.sampled_from([*KEYS, *ODD_KEYS]), st.sampled_from(VALUES))
PLAIN = st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES[:14]))


def outcome(make: object, *arguments: object, **options: object) -> str:
    """What composing gives, as text that tells 1 from 1.0 and True, or the error."""
    try:
        found = make(*arguments, **options)  # type: ignore[operator]
    except UserError as error:
        return f"refused: {error}"
    return json.dumps({name: getattr(part, "value", part) for name, part in found.items()}, sort_keys=True)


@fuzz(40)
@given(
    st.sampled_from(BASES),
    st.one_of(
        st.lists(PLAIN, max_size=6), st.lists(KEY_VALUES | PLAIN | st.sampled_from(GROUPS), max_size=3)
    ),
)
def test_settings_are_those_of_hydra(choices: list[str], more: list[str]) -> None:
    overrides = [*choices, *more]
    expected = outcome(through_hydra, overrides, resolved=True)
    assert outcome(fast, overrides) == expected


def test_plain_values_do_not_go_through_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the property above would compare Hydra with itself."""
    compose(["rule=cppo"])
    monkeypatch.setattr("cppo_lab.sweep.compose.settings.composed", None)
    run = compose(
        ["rule=cppo", "rule.delta=0.123", "trust_region.w_min=0.7", "data.benchmarks=[a,b]", "seed=9"]
    ).run
    assert (run.rule.delta, run.rule.w_min, run.seed, run.data.benchmarks) == (0.123, 0.7, 9, ("a", "b"))


@pytest.mark.parametrize(
    "override", [text for text in GROUPS if text.startswith(("rule", "model", "layout"))]
)
def test_every_shipped_option_can_take_values_in_copies(override: str) -> None:
    """A reference of another kind than `${section.key}` in conf/ would send all its runs through Hydra."""
    core = ["core=verl"] if "verl" in override or "qwen" in override else []
    assert base((*core, override)).ordinary


@fuzz(60)
@given(
    st.sampled_from(BASES[:2]),
    st.sampled_from([0, 1, 7, 2**31 - 1]),
    st.floats(0.001, 10, allow_nan=False),
    st.floats(1e-300, 1e300),
    st.text(alphabet="aé.-_Z9", min_size=1, max_size=5),
)
def test_the_id_is_the_fingerprint(
    choices: list[str], seed: int, rate: float, decay: float, name: str
) -> None:
    overrides = [*choices, f"seed={seed}", f"optim.learning_rate={rate!r}", f"optim.weight_decay={decay!r}"]
    try:
        found = compose([*overrides, f"data.name='{name}'"])
    except UserError:
        found = compose(overrides)
    assert found.run_id == found.run.run_id == fingerprint(found.run)


def test_equal_sections_are_shared() -> None:
    one, two = compose(["seed=1"]), compose(["seed=2", "rule.delta=0.2"])
    assert one.run.model is two.run.model
    assert one.layout is two.layout
    assert one.run.rule is not two.run.rule


def test_what_is_resolved_is_the_callers_own() -> None:
    from cppo_lab.sweep.compose import resolve

    resolve(["rule=cppo"])["rule"]["delta"] = 99
    assert resolve(["rule=cppo"])["rule"]["delta"] != 99


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed=1,2", (1, 2)),
        ("seed=range(0,3)", (0, 1, 2)),
        ("rule=choice(cppo,dppo)", ("cppo", "dppo")),
        ("a.b='x,y',z", ("x,y", "z")),
        ("a.b=[1,2]", None),
        ("a.b='1,2'", None),
        ("a.b=1", None),
        ("a.b=[1", None),
    ],
)
def test_lists_of_values_follow_hydras_grammar(text: str, values: tuple[object, ...] | None) -> None:
    assert listed(text) == values


def test_endless_lists_are_refused() -> None:
    with pytest.raises(UserError, match="lists more than 100,000 values"):
        listed("seed=range(0,1000000000)")


def test_what_does_not_parse_is_left_to_hydra() -> None:
    assert parsed("rule.delta=[1").kind == "other"
