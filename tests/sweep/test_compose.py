"""Hydra composes once per combination of groups; all else is as Hydra alone has it, typed, or refused in one line."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import hydra
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from cppo_lab.errors import UserError
from cppo_lab.sweep import compose as module
from cppo_lab.sweep.compose import compose, data_of
from cppo_lab.sweep.groups import CONF, groups
from cppo_lab.sweep.overrides import parse_override
from tests.conftest import user_error
from tests.fuzz.mangling import fuzz, refused
from tests.jobs import planned

BASES = [
    [],
    ["model=mini_small_base", "rule=trm_max"],
    ["core=verl", "model=qwen3_30b_a3b_base", "rule=cppo_kl"],
    ["rule=dr_grpo", "divergence=binary_tv"],
    ["core=verl", "rule=verl_dro", "model=tiny_qwen3"],
]
VALUES = [
    "1", "-3", "0.5", "1_000", "inf", "true", "null", "word", "'quo_ted'", "[1,2]", "[]", "{a:1}", "${seed}",
    "x${seed}", "???", "'${seed}'", "[${seed}]", "\\${seed}", "${.delta}", "${rule.${rule.name}}", "'1'", "0x1", "",
]  # fmt: skip
ODD_KEYS = """
rule.name.x training.t_stopp layout.verl +rule.new ++rule.delta +seed ~rule.delta ~seed seed@x
data.benchmarks.0 trust_region ~trust_region.delta +new.key ~nothing
"""
ODD_VALUES = [
    "${x", "1,2", "range(0,3)", "range(0,1,0)", "sort(1,a)", "int(x)", "../../x", "[" * 1500, "9" * 5000, "\ud800",
    "a\nb",
]  # fmt: skip


def by_hydra(overrides: Sequence[str]) -> dict[str, Any]:
    """Hydra's own composition of all overrides, resolved."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        values = OmegaConf.to_container(hydra.compose("config", list(overrides)), resolve=True)
    return {str(key): value for key, value in values.items()}


KEYS = sorted({name for choices in BASES for name in module.values(choices)})
CHOICES = [f"{group}={option}" for group, options in groups().items() for option in options]


def assigned(keys: Sequence[str]) -> st.SearchStrategy[str]:
    return st.builds("{}={}".format, st.sampled_from(keys), st.sampled_from(VALUES))


@fuzz(20)
@given(
    st.sampled_from(BASES),
    st.lists(assigned(KEYS), max_size=5)
    | st.lists(assigned(ODD_KEYS.split()) | assigned(KEYS) | st.sampled_from(CHOICES), max_size=3),
)
@example([], ["trust_region.delta=0.3", "rule.w_min=0.7", "optim.learning_rate=${rule.delta}"])
@example([], ["trust_region.delta=0.3"])
@example([], ["+seed=1"])
@example([], ["~rule.delta=9"])
@example([], ["rule.delta=1", "~rule.delta", "+rule.delta=2"])
@example([], ["paths.data=a", "paths.data=b", "paths={models: c}"])
@example([], ["advantage.drop_zero_variance=${.delta}", "advantage.drop_zero_variance=[1,2]"])
def test_values_are_those_of_hydra(choices: list[str], more: list[str]) -> None:
    overrides = [*choices, *more]
    try:
        for text in overrides:
            parse_override(text).check()
        expected = json.dumps(by_hydra(overrides), sort_keys=True)
    except Exception:  # noqa: BLE001 - whatever Hydra, OmegaConf or we refuse
        expected = "refused"
    try:
        sections = module._sections(overrides)
        assert expected == json.dumps(sections, sort_keys=True)
    except UserError as error:
        assert expected == "refused", error
        assert "\n" not in str(error)


def test_a_model_may_be_called_as_it_is_or_as_no_other_is() -> None:
    for name in ("mini_quick", "mine"):
        assert compose(["model=mini_quick", f"model.name={name}"]).run.model.name == name


def test_hydra_composes_once_per_combination_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.sweep.compose.hydra_compose", counted := Mock(side_effect=hydra.compose))
    for variable in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    module._combination.cache_clear()
    more = ["trust_region.w_min=0.7", "data.benchmarks=[a,b]", "++optim.beta1=0.5", "rule.delta=${seed}"]
    for rule, seed in itertools.product(("cppo", "cppo_soft"), (3, 4)):
        run = compose([f"rule={rule}", f"seed={seed}", *more]).run
        assert (run.seed, run.rule.name, run.rule.delta, run.rule.w_min) == (seed, rule, seed, 0.7)
        assert run.data.benchmarks == ("a", "b")
    assert [call.args[1][0] for call in counted.call_args_list] == ["rule=cppo", "rule=cppo_soft"]
    assert not list(tmp_path.iterdir())


ODD_TEXTS = st.builds(
    "{}{}={}".format,
    st.sampled_from(["", "+", "++", "~", "+~"]),
    st.sampled_from([*KEYS, *groups(), *ODD_KEYS.split(), "variant", "hydra.run.dir", "/rule", "a.b.", ""]),
    st.sampled_from([*VALUES, *ODD_VALUES]) | st.text(max_size=8),
)


@fuzz(60)
@given(st.lists(ODD_TEXTS | st.text(max_size=12), min_size=1, max_size=3))
@example(["+a=" + "9" * 5000])
@example(["seed=" + "[" * 1500])
def test_any_text_is_a_configuration_or_one_line(overrides: list[str]) -> None:
    refused(lambda: compose(overrides))
    refused(lambda: planned(["quickstart", *overrides]))


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The overrides of a run on files and a reward in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine.jsonl").write_text('{"problem": "p", "answer": "1"}\n')
    Path("own_reward_a.py").write_text("def score(**_): return 1\n")
    return [
        "core=verl", "model=tiny_qwen3", "data=files", "data.train=mine.jsonl", "data.validation.held=mine.jsonl",
        "data.reward=own_reward_a:score",
    ]  # fmt: skip


def test_own_files_and_rewards_are_in_the_id_by_their_contents(own_data: list[str]) -> None:
    first = compose(own_data).run
    assert first.data.benchmarks == ("held",)
    assert first.data.files["train"].path == str(Path("mine.jsonl").resolve())
    Path("other.jsonl").write_bytes(Path("mine.jsonl").read_bytes())
    moved = compose([text.replace("mine.jsonl", "other.jsonl") for text in own_data]).run
    assert moved.run_id == first.run_id
    Path("own_reward_a.py").write_text("def score(**_): return 0\n")
    edited = compose(own_data).run
    Path("mine.jsonl").write_text('{"problem": "p", "answer": "2"}\n')
    others = (edited, compose(own_data).run, compose(own_data[:-1]).run)
    assert len({run.run_id for run in (first, *others)}) == 4
    Path("circle").symlink_to("circle")
    with user_error(r"data\.train='circle' cannot be read \(Too many levels of symbolic links\)"):
        compose([*own_data, "data.train=circle"])


@pytest.mark.parametrize(
    "stem, name",
    {
        "my set": "my_set",
        "_held": "held",
        "2026": "2026",
        "2026-b": "problems_2026_b",
        "train": "problems_train",  # among the files of a run, and
        "mean": "problems_mean",  # among its scores, these name others
        "é": "problems",
    }.items(),
)
def test_a_file_of_problems_is_evaluated_under_its_name(own_data: list[str], stem: str, name: str) -> None:
    Path("mine.jsonl").rename(f"{stem}.jsonl")
    assert compose([*own_data[:2], *data_of(f"{stem}.jsonl")]).run.data.benchmarks == (name,)


def test_a_sweep_file_chooses_among_the_rewards_of_its_users_environment(
    own_data: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own_reward_b.py").write_text("def strict(**_): return 1\n")
    Path("mine.yaml").write_text("title: t\nmodels: [tiny_qwen3]\naxes: {data.reward: [score, strict]}\n")
    with user_error("CPPO_REWARDS"):
        planned(["mine.yaml", *own_data[:-1]])
    monkeypatch.setenv("CPPO_REWARDS", "own_reward_a:score,own_reward_b:strict")
    runs = planned(["mine.yaml", *own_data[:-1]]).runs
    assert [run.spec.data.reward for run in runs] == ["own_reward_a:score", "own_reward_b:strict"]


@pytest.mark.parametrize(
    "text, values",
    {
        "seed=1,2": (1, 2),
        "seed=range(0,3)": (0, 1, 2),
        "rule.w_min=range(0.2,1.0,0.3)": (0.2, 0.5, 0.8),
        "rule=choice(cppo,dppo)": ("cppo", "dppo"),
        "a.b='x,y',z": ("x,y", "z"),
        "a.b=[1,2]": None,
        "a.b='1,2'": None,
        "a.b=[1": None,
    }.items(),
)
def test_lists_of_values_follow_hydras_grammar(text: str, values: tuple[object, ...] | None) -> None:
    assert parse_override(text).values() == values
