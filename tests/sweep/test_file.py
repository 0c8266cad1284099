"""What sweep files can say: axes of any key and their labels, exclusions, resources, values per core."""

import re
from math import inf
from pathlib import Path

import pytest

from cppo_lab.sweep.file import load_sweep, shipped_sweeps
from cppo_lab.sweep.plan import Plan, make_plan
from cppo_lab.sweep.source import mapping
from tests.conftest import user_error
from tests.jobs import run_of

pytestmark = pytest.mark.usefixtures("workspace")
HEAD = "title: t\nquestion: q\nmodels: {mini: [mini_base, mini_strong], verl: [tiny_qwen3, qwen3_8b_base]}\n"


def planned(text: str, *overrides: str, head: str = HEAD) -> Plan:
    Path("mine.yaml").write_text(head + text)
    return make_plan(load_sweep("mine.yaml"), overrides)


def labels(plan: Plan) -> list[str]:
    """Labels of the runs of the first model and seed."""
    first = plan.runs[0].spec
    return [run.variant for run in plan.runs if (run.spec.model, run.spec.seed) == (first.model, first.seed)]


NUMBERS = {  # as YAML 1.2 reads them, which PyYAML does not
    "1e3": 1e3, "1E3": 1e3, "1.5e3": 1.5e3, "1.5E+3": 1.5e3, "1e-6": 1e-6, "1.e3": 1e3, ".5": 0.5, "-.5e1": -5.0,
    "5.": 5.0, "+3": 3, "-0": 0, "0": 0, "1000": 1000, "1e08": 1e8, "!!float 1": 1.0, "+.inf": inf, "-.INF": -inf,
}  # fmt: skip
TEXTS = "on off yes No y n tRue = 12:75 1.2.3 inf e3 0o8 - . '010'"
OTHERS = {"true": True, "FALSE": False, "~": None, "Null": None, "": None}
AMBIGUOUS = "010 -010 08 007 00 0o10 0x10 0b11 1_000 1_ 1:30 1:30:00 1:30.5 010.5 01e3 1_0.5 0.5_0 1e1_0"


def read(value: str) -> object:
    return mapping(f"a: [{value}]", "x")["a"][0]


def test_numbers_of_yaml_1_2_and_words_of_yaml_1_1() -> None:
    for value, number in NUMBERS.items():
        assert (read(value), type(read(value))) == (number, type(number)), value
        assert read(f"'{value}'") == value
    texts = TEXTS.split()
    assert [*map(read, texts)] == [value.strip("'") for value in texts]
    assert [read(f"{value} ") for value in list(OTHERS)[:-1]] == list(OTHERS.values())[:-1]
    assert mapping("a:", "x") == {"a": None}


@pytest.mark.parametrize("value", AMBIGUOUS.split())
def test_a_number_that_programs_read_differently_is_refused(value: str) -> None:
    refused = rf"sweep x line 1, column \d+: .*'{re.escape(value)}' is a number that .* quote"
    for text in (f"a: {value}", f"a: [{value}]", f"a: {{b: {value}}}", f"{value}: a"):
        with user_error(refused):
            mapping(text, "x")
    assert read(f"'{value}'") == value


def test_only_models_and_a_seed() -> None:
    plan = planned("axes: {seed: [3]}")
    assert labels(plan) == ["mine"]
    assert plan.runs[0].run_id == run_of("model=mini_base seed=3").run_id


TWO = "variants: {cppo: {rule: cppo}, dppo: {rule: dppo}}\n"


def test_an_axis_goes_to_the_rules_that_have_it() -> None:
    text = f"{TWO}axes: {{rule.w_min: [0.6, 0.8], seed: [0, 1]}}"
    plan = planned(text)
    assert labels(plan) == ["cppo w_min=0.6", "cppo w_min=0.8", "dppo"]
    assert len(plan.runs) == 2 * 3 * 2
    assert [run.spec.rule.w_min for run in plan.runs][:6] == [0.6, 0.6, 0.8, 0.8, None, None]
    assert labels(planned(text, "rule.w_min=0.7")) == ["cppo w_min=0.7", "dppo"]
    assert labels(planned(text, "variant=dppo")) == ["dppo"]


def test_an_axis_of_model_constants_goes_to_the_rules_that_take_them() -> None:
    text = "variants: {cppo: {rule: cppo}, own: {rule: cppo, rule.delta: 0.3}, grpo: {rule: grpo, data.name: '1e5'}}\n"
    plan = planned(text + "axes: {trust_region.delta: [0.05, 0.1]}")
    assert plan.runs[3].spec.data.name == "1e5"  # text that looks like a number
    assert labels(plan) == ["cppo delta=0.05", "cppo delta=0.1", "own", "grpo"]
    assert [run.spec.rule.delta for run in plan.runs][:4] == [0.05, 0.1, 0.3, None]


@pytest.mark.parametrize(
    "axes, expected",
    {
        "{rule: [cppo, dppo], rule.delta_b: [0.01]}": ["cppo delta_b=0.01", "dppo"],
        "{validation.temperature: [1], rollout.temperature: [1, 2]}":
         ["validation.temperature=1 rollout.temperature=1", "validation.temperature=1 rollout.temperature=2"],
        "{optim.learning_rate: [1e-4, 1.5e-3, 0.00012345678, 1.0]}":
         ["learning_rate=0.0001", "learning_rate=0.0015", "learning_rate=0.00012345678", "learning_rate=1"],
        "{advantage.normalize_std: [true, false]}": ["normalize_std=true", "normalize_std=false"],
        "{data: [chain_short], divergence: [binary_tv, exact_tv]}":
         ["chain_short binary_tv", "chain_short exact_tv"],
    }.items(),
)  # fmt: skip
def test_labels(axes: str, expected: list[str]) -> None:
    plan = planned(f"axes: {axes}")
    assert labels(plan) == expected
    assert len({run.run_id for run in plan.runs}) == len(plan.runs) == 2 * len(expected)


def test_labels_do_not_depend_on_what_is_asked_for() -> None:
    text = "variants: {a: {rule: cppo}}\naxes: {rule.w_min: [0.6, 0.8], rule.delta: [0.1, 0.2]}"
    every, some = (
        {run.run_id: run.variant for run in planned(text, *narrow).runs}
        for narrow in ((), ("rule.delta=0.2", "model=mini_strong"))
    )
    assert some.items() < every.items()


def test_a_list_on_the_command_line_is_an_axis() -> None:
    text = f"{TWO}axes: {{seed: [0]}}"
    plan = planned(text, "rule.delta_b=choice(0.01,0.03)", "seed=range(0,2)")
    assert labels(plan) == ["cppo delta_b=0.01", "cppo delta_b=0.03", "dppo"]
    assert {run.spec.seed for run in plan.runs} == {0, 1}
    assert labels(planned(text, "data.benchmarks=[a,b]")) == ["cppo", "dppo"]  # one value, which is a list


EXCLUDED = f"""{TWO}axes: {{seed: [0, 1, 2]}}
exclude:
  - {{variant: cppo, model: mini_strong}}
  - {{rule: dppo, seed: [1, 2]}}
  - {{core: verl, model: qwen3_8b_base, variant: dppo}}
"""


def test_exclusions() -> None:
    plan = planned(EXCLUDED)
    assert [(run.variant, run.spec.model.name, run.spec.seed) for run in plan.runs] == [
        *(("cppo", "mini_base", seed) for seed in (0, 1, 2)),
        ("dppo", "mini_base", 0),
        ("dppo", "mini_strong", 0),
    ]
    big = [run for run in planned(EXCLUDED, "core=verl").runs if run.spec.model.name == "qwen3_8b_base"]
    assert [(run.variant, run.spec.seed) for run in big] == [("cppo", 0), ("cppo", 1), ("cppo", 2)]
    assert len(planned(EXCLUDED, "seed=5").runs) == 3  # the entry on seeds 1 and 2 stays valid
    with user_error("exclude removes every run that 'variant=cppo model=mini_strong' chooses: remove"):
        planned(EXCLUDED, "variant=cppo", "model=mini_strong")


RESOURCES = """resources:
  - {hours: 24, cpus: 8, partition: small, nodes: 2}  # of a layout that an entry below replaces
  - {for: {model: qwen3_8b_base}, layout: four_nodes, hours: 72.5, partition: null, constraint: "[h100|h200]"}
  - {for: {model: qwen3_8b_base, rule: dppo}, nodes: 1}
"""


def test_resources() -> None:
    plan, plain = (planned(text, "core=verl") for text in (TWO + RESOURCES, TWO))
    tiny, _, large, last = plan.runs
    assert (tiny.resources.hours, tiny.resources.cpus, tiny.resources.partition) == (24, 8, "small")
    assert (large.layout.name, large.layout.nodes, large.resources.hours) == ("four_nodes", 4, 72.5)
    assert (large.resources.partition, large.resources.constraint) == (None, "[h100|h200]")
    assert (last.spec.model.name, last.variant, last.layout.nodes) == ("qwen3_8b_base", "dppo", 1)
    assert [run.run_id for run in plan.runs] == [run.run_id for run in plain.runs]


def test_the_command_line_has_the_last_word_on_resources() -> None:
    for override, name, nodes in (("layout=two_nodes", "two_nodes", 2), ("layout.nodes=8", "four_nodes", 8)):
        asked = ("core=verl", "resources.hours=5", "model=qwen3_8b_base", override)
        for run in planned(TWO + RESOURCES, *asked).runs:
            assert (run.layout.name, run.layout.nodes, run.resources.hours) == (name, nodes, 5)


def test_values_for_each_core() -> None:
    text = "variants: {a: {rule: cppo}}\naxes: {rule.delta_b: {mini: [0.01], verl: [0.02, 0.04]}}\n"
    text += "exclude: [{model: qwen3_8b_base, rule.delta_b: 0.04}]"
    assert labels(planned(text)) == ["a delta_b=0.01"]  # the entry is about the other core
    assert [run.variant for run in planned(text, "core=verl").runs] == [
        "a delta_b=0.02",
        "a delta_b=0.04",
        "a delta_b=0.02",
    ]


def test_paths_in_a_study_are_beside_it() -> None:
    Path("deep/er").mkdir(parents=True)
    for name, text in {
        "one": HEAD + "variants: {cppo: {rule: cppo}}\naxes: {seed: [0]}",
        "two": HEAD + "axes: {rule: [cppo, minpro]}",
        "all": "title: t\nsweeps: [one.yaml, ./two.yaml, quickstart]\naxes: {seed: [0, 1]}",
    }.items():
        Path(f"deep/er/{name}.yaml").write_text(text)
    plan = make_plan(load_sweep("deep/er/all.yaml"))
    assert [sweep.name for sweep in plan.sweeps] == ["one", "two", "quickstart"]
    assert (len(plan.runs), plan.places) == (2 * (2 + 2 + 3), 2 * (2 + 4 + 3))


def test_the_grid_of_sensitivity() -> None:
    """All its points once, DPPO once; the chosen setting is the main sweep's CPPO."""
    for core, model, budget in (("mini", "mini_small_base", 0.01), ("verl", "qwen3_1_7b_base", 0.02)):
        ids, main = (
            {run.variant: run.run_id for run in make_plan(load_sweep(name), [f"core={core}", *more]).runs}
            for name, more in (("sensitivity_grid", []), ("main", [f"model={model}"]))
        )
        assert len(ids) == 4 * 5 + 1
        assert ids[f"cppo delta_b={budget} w_min=0.8"] == main["cppo"]
        assert [ids[name] for name in ids if "dppo" in name] == [main["dppo"]]


def test_the_papers_tables_and_figures_all_have_a_sweep() -> None:
    fed = {name: set(load_sweep(name).feeds) for name in shipped_sweeps()}
    everything = {f"Table {i}" for i in (1, 2, 3, 4)} | {f"Figure {i}" for i in range(1, 12)}
    assert fed["study"] == everything
    of_sweeps = set().union(*(fed[name] for name in load_sweep("study").sweeps))
    assert of_sweeps == everything - {"Table 2"}  # made from the registry of rules, without any run
