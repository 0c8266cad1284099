"""What is wrong with a sweep file, said in one line: file, key, value and remedy."""

import os
from pathlib import Path

import pytest

from cppo_lab.errors import UserError
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan

ROOT = Path(__file__).parents[2]
HEAD = "title: t\nquestion: q\n"
RULES = ", ".join(sorted(path.stem for path in (ROOT / "conf" / "rule").glob("*.yaml")))
CPPO = (
    "valid: rule.delta, rule.delta_b, rule.delta_b_cap, rule.delta_b_mode, rule.delta_b_quantile, rule.delta_b_scale, "
    "rule.log_ratio_clamp, rule.name, rule.position_span, rule.ratio_cap, rule.w_min"
)
LAYOUTS = (
    "cpu, cpu_two_nodes, cpu_vllm, four_nodes, four_nodes_megatron, four_nodes_moe, one_node, one_node_megatron, "
    "two_nodes, two_nodes_megatron"
)


def sweep(
    models: str = "[mini_base]",
    variants: str = "{cppo: {rule: cppo}, dppo: {rule: dppo}}",
    axes: str = "{seed: [0, 1]}",
    more: str = "",
) -> str:
    return f"{HEAD}models: {models}\nvariants: {variants}\naxes: {axes}\n{more}\n"


def variant(keys: str, models: str = "[mini_base]") -> str:
    return sweep(models, f"{{a: {{{keys}}}}}")


HUB = "{verl: [qwen3_8b_base]}"
MINI = {
    "bad_yaml": (
        f"{HEAD}models: [a\n",
        " line 4, column 1: not valid YAML: expected ',' or ']', but got '<stream end>'",
    ),
    "tabs": (
        f"{HEAD}models:\n\t- a\n",
        " line 4, column 1: not valid YAML: found character '\\t' that cannot start any token",
    ),
    "key_twice": (
        f"{HEAD}models: [mini_base]\nvariants:\n  a: {{rule: cppo}}\n  a: {{rule: dppo}}\n",
        " line 6, column 3: key 'variants.a' appears twice: remove one",
    ),
    "no_mapping": ("- a\n", ": a sweep file is a mapping with title, question, models, variants, axes"),
    "top_key": (
        sweep(more="axis: {seed: [0]}"),
        ": unknown key 'axis': did you mean 'axes'? valid: axes, baseline, beside, exclude, feeds, hypotheses, models, "
        "name, pairing, question, resources, title, variants",
    ),
    "missing": (f"{HEAD}variants: {{a: {{rule: cppo}}}}\n", ": models is missing: add it"),
    "date": (
        sweep().replace("title: t", "title: 2020-01-01"),
        ": title=datetime.date(2020, 1, 1) is a date: only text, numbers, true, false, lists and mappings are values: "
        "quote it",
    ),
    "number_as_key": (sweep(variants="{1: {rule: cppo}}"), ": variants.1: the key 1 is not text: quote it"),
    "reference": (
        variant("rule: cppo, rule.delta: '${oc.env:HOME}'"),
        ": variants.a.rule.delta='${oc.env:HOME}': a sweep file holds plain values; ${...} belongs into conf/",
    ),
    "list_as_value": (
        variant("rule: cppo, rule.delta: [1]"),
        ": variants.a.rule.delta=[1]: must be a plain value: several are an axis",
    ),
    "unknown_key": (
        variant("rule: cppo, rule.wmin: 0.5"),
        f": variants.a.rule.wmin=0.5: unknown key 'rule.wmin': did you mean 'rule.w_min'? {CPPO}",
    ),
    "unknown_option": (
        variant("rule: cppoo"),
        f": variants.a.rule='cppoo': unknown rule 'cppoo': did you mean 'cppo'? valid: {RULES}",
    ),
    "out_of_range": (
        variant("rule: cppo, rule.w_min: 1.5"),
        ": variants.a.rule.w_min=1.5: must be in (0, 1]",
    ),
    "wrong_type": (
        variant("rule: cppo, training.t_stop: abc"),
        ": variants.a.training.t_stop='abc': must be a whole number in [1, 1000000000]",
    ),
    "text_is_no_number": (
        variant("rule: cppo, rule.delta: '0.1'"),
        ": variants.a.rule.delta='0.1': must be a number in (0, inf)",
    ),
    "out_of_range_on_an_axis": (
        sweep(axes="{rule.w_min: [0.5, 2]}"),
        ": axes.rule.w_min=2: must be in (0, 1]",
    ),
    "empty_axis": (
        sweep(axes="{seed: []}"),
        ": axes.seed=[]: must be a list of one or more plain values, or such a list for each core",
    ),
    "empty_models": (
        sweep(models="[]"),
        ": models=[]: must be a list of one or more names, or such a list for each core",
    ),
    "value_twice": (sweep(axes="{seed: [0, 0]}"), ": axes.seed=[0, 0]: 0 appears twice: remove one"),
    "same_run": (
        sweep(variants="{a: {rule: cppo}, b: {rule: cppo}}", axes="{seed: [0]}"),
        ": variants 'a' and 'b' compose to the same run de6dbad0155a: remove one, or the override that "
        "makes them equal",
    ),
    "minibatch": (
        variant("rule: cppo, batch.minibatch_prompts: 5"),
        ": variants.a.batch.minibatch_prompts=5: batch: minibatch_prompts=5 must divide prompts=32 (valid: [1, 2, 4, "
        "8, 16, 32])",
    ),
    "t_stop": (
        variant("rule: cppo, training.t_stop: 12"),
        ": variants.a.training.t_stop=12 must lie on the validation grid: make it a multiple of validation.every=5",
    ),
    "more_than_the_vocabulary": (
        sweep(axes="{divergence.k: [8, 20]}"),
        ": axes.divergence.k=20: the rollout policy has log-probabilities of 16 tokens, the whole vocabulary; set "
        "divergence.k=16 or less",
    ),
    "trm_on_tv": (
        variant("rule: trm_max, divergence: topk_tv"),
        ": variants.a.divergence='topk_tv': divergence.measure='tv' with rule 'trm_max': its thresholds are on "
        "KL(mu to pi); choose divergence=topk_kl, binary_kl, exact_kl or sample_k3",
    ),
    "published_model_on_mini": (
        sweep(models="[qwen3_8b_base]"),
        ": models='qwen3_8b_base' is a published model, which core='mini' cannot train: add core=verl, or choose a "
        "model of its own",
    ),
    "no_models_for_the_core": (sweep(models=HUB), " has no models for core=mini (valid: verl)"),
    "no_values_for_the_core": (
        sweep(axes="{seed: {verl: [0]}}"),
        " has no axes.seed for core=mini (valid: verl)",
    ),
    "axis_that_nobody_has": (
        sweep(axes="{rule.wmin: [0.5]}"),
        f": axes.rule.wmin: unknown key 'rule.wmin': did you mean 'rule.w_min'? {CPPO}",
    ),
    "axis_that_does_not_exist": (
        sweep(axes="{sed: [0]}"),
        ": axes.sed=0: unknown key 'sed': did you mean 'seed'? valid: advantage, batch, core, data, divergence, "
        "launcher, layout, model, optim, paths, recipe, resources, rollout, rule, seed, tracking, training, "
        "trust_region, validation",
    ),
    "axis_that_nothing_depends_on": (
        sweep(variants="{a: {rule: grpo}}", axes="{trust_region.delta: [0.5, 0.6]}"),
        ": axes.trust_region.delta: no run of the sweep depends on 'trust_region.delta': remove it",
    ),
    "models_as_axis": (sweep(axes="{model: [mini_base]}"), ": axes.model: 'model' is no axis: use models:"),
    "launcher_as_axis": (
        sweep(axes="{launcher.threads: [1]}"),
        ": axes.launcher.threads: 'launcher.threads' belongs on the command line, not in a sweep file",
    ),
    "layout_as_axis": (sweep(axes="{layout: [cpu]}"), ": axes.layout: 'layout' is no axis: use resources:"),
    "core_of_a_variant": (
        variant("rule: cppo, core: mini"),
        ": variants.a.core: choose it on the command line: core=verl",
    ),
    "excluded_name": (
        sweep(more="exclude: [{variant: cpo}]"),
        ": exclude.0.variant='cpo': unknown variant 'cpo': did you mean 'cppo'? valid: cppo, dppo",
    ),
    "excluded_value": (
        sweep(more="exclude: [{seed: [1, 2]}]"),
        ": exclude.0.seed=2: unknown seed '2': valid: 0, 1",
    ),
    "excluded_key": (
        sweep(more="exclude: [{variant: cppo}, {sed: 1}]"),
        ": exclude.1.sed: unknown condition 'sed': did you mean 'seed'? valid: core, model, rule, seed, variant",
    ),
    "excludes_nothing": (
        sweep(axes="{rule.w_min: [0.6, 0.8]}", more="exclude: [{rule: dppo, rule.w_min: 0.6}]"),
        ": exclude.0={rule: dppo, rule.w_min: 0.6}: no run of the sweep has all of these: remove the entry, or a "
        "condition of it",
    ),
    "excludes_everything": (
        sweep(more="exclude: [{variant: [cppo, dppo]}]"),
        ": exclude removes every run: remove an entry of it",
    ),
    "no_condition": (
        sweep(more="exclude: [{}]"),
        ": exclude.0: must name at least one of variant, model, core, or a key of variants and axes",
    ),
    "resources_key": (
        sweep(more="resources: [{hourz: 3}]"),
        ": unknown key 'resources.0.hourz': did you mean 'resources.0.hours'? valid: resources.0.account, "
        "resources.0.constraint, resources.0.cpus, resources.0.for, resources.0.gpu_type, resources.0.gpus, "
        "resources.0.hours, resources.0.layout, resources.0.memory_gb, resources.0.nodes, resources.0.partition, "
        "resources.0.qos",
    ),
    "resources_range": (
        sweep(more="resources: [{hours: 0}]"),
        ": resources.0.hours=0: must be in (0, 10000]",
    ),
    "resources_of_nobody": (
        sweep(more="resources: [{for: {model: mini_bas}, hours: 3}]"),
        ": resources.0.for.model='mini_bas': unknown model 'mini_bas': did you mean 'mini_base'? valid: mini_base",
    ),
    "resources_characters": (
        sweep(more="resources: [{partition: 'a; rm b'}]"),
        ": resources.0.partition='a; rm b': must match ^[A-Za-z0-9][A-Za-z0-9_.,:+@-]*$",
    ),
    "resources_layout": (
        sweep(more="resources: [{layout: five_nodes}]"),
        f": resources.0.layout='five_nodes': unknown layout 'five_nodes': did you mean 'four_nodes'? valid: {LAYOUTS}",
    ),
    "feeds": (
        sweep(more="feeds: [Tabel 1]"),
        ": feeds.0='Tabel 1': must be a table or figure of the paper, such as Table 1 or Figure 4",
    ),
    "variant_name": (
        sweep(variants="{'a,b': {rule: cppo}}"),
        ": variants.a,b='a,b': must be a name without commas: the command line lists names (variant=a,b)",
    ),
    "two_faults": (
        variant("rule: cppo, rule.delta: -1, rule.w_min: 2"),
        ": variants.a.rule.delta=-1: must be in (0, inf); also: rule.w_min=2: must be in (0, 1]",
    ),
}
VERL = {
    "exact": (
        variant("rule: cppo, divergence: exact_tv", HUB),
        ": variants.a.divergence='exact_tv': divergence.estimator='exact' would carry mu's whole vocabulary for every "
        "token: choose divergence=topk_tv or topk_kl",
    ),
    "staleness": (
        variant("rule: cppo, rollout.staleness: 1", HUB),
        ": variants.a.rollout.staleness=1: verl's synchronous trainer samples from the current policy; set "
        "rollout.staleness=0, or core=mini",
    ),
    "ranks": (
        sweep(HUB, more="resources: [{hours: 3}, {gpus: 3}]"),
        ": resources.1.gpus=3: layout='two_nodes' has 6 data-parallel ranks, which cannot share a minibatch of 32 "
        "prompts x 8 responses equally: choose a layout whose ranks divide 256",
    ),
    "vocabulary": (
        variant("rule: cppo, divergence.k: 200000", HUB),
        ": variants.a.divergence.k=200000: the rollout policy has log-probabilities of 151936 tokens, the whole "
        "vocabulary; set divergence.k=151936 or less",
    ),
}


@pytest.mark.parametrize(
    ("text", "message", "overrides"),
    [(*case, []) for case in MINI.values()] + [(*case, ["core=verl"]) for case in VERL.values()],
    ids=[*MINI, *VERL],
)
def test_one_line_names_file_key_value_and_remedy(
    workspace: Path, text: str, message: str, overrides: list[str]
) -> None:
    Path("mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        make_plan(load_sweep("mine.yaml"), overrides)
    assert str(caught.value) == f"sweep mine.yaml{message}"


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ("sweeps: [maine]", "study mine.yaml: sweeps.0: unknown sweep 'maine': did you mean 'main'? valid: "),
        (
            "sweeps: [main, a/b.yaml]",
            "study mine.yaml: sweeps.1: sweep file a/b.yaml does not exist (shipped sweeps: ",
        ),
        ("sweeps: [study]", "study mine.yaml: sweeps.0: study is a study itself; name its sweeps"),
        (
            "sweeps: [quickstart]\naxes: {rule: [cppo]}",
            "sweep quickstart in study mine.yaml: variants.grpo.rule: variant 'grpo' sets 'rule', which is an axis "
            "too: ",
        ),
        (
            "sweeps: [quickstart]\naxes: {seed: [-1]}",
            "sweep quickstart in study mine.yaml: axes.seed=-1: must be in [0, 2147483648)",
        ),
    ],
)
def test_what_is_wrong_with_a_study(workspace: Path, study: str, message: str) -> None:
    Path("mine.yaml").write_text(f"{HEAD}{study}\n")
    with pytest.raises(UserError) as caught:
        make_plan(load_sweep("mine.yaml"))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("loop.yaml").symlink_to("loop.yaml")
    Path("dangling.yaml").symlink_to("nothing.yaml")
    Path("folder.yaml").mkdir()
    Path("big.yaml").write_text("#" * 1_000_001)
    Path("secret.yaml").write_text("title: t")
    os.mkfifo("pipe.yaml")
    expected = {
        "loop.yaml": "cannot be read: Too many levels of symbolic links: name a readable file",
        "folder.yaml": "is a folder: name a file in it",
        "big.yaml": "has more than 1,000,000 bytes: no sweep needs as many",
        "pipe.yaml": "is no regular file: copy its text into one",
        "x" * 300 + ".yaml": "cannot be read: File name too long: name a readable file",
        "no\0.yaml": "cannot be read: embedded null byte: name a readable file",
    }
    for name, message in expected.items():
        with pytest.raises(UserError) as caught:
            load_sweep(name)
        assert str(caught.value) == f"sweep file {name} {message}".replace("\0", r"\x00")
    for name in ("dangling.yaml", "none.yaml"):
        with pytest.raises(UserError, match=f"sweep file {name} does not exist"):
            load_sweep(name)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)  # who runs the tests may be root
    with pytest.raises(UserError) as caught:
        load_sweep("secret.yaml")
    assert (
        str(caught.value) == "sweep file secret.yaml cannot be read: Permission denied: name a readable file"
    )


def test_aliases_that_explode(workspace: Path) -> None:
    levels = "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 10)}]\n" for i in range(1, 9))
    Path("mine.yaml").write_text(f"b0: &b0 [{', '.join('x' * 10)}]\n{levels}{sweep()}")
    with pytest.raises(UserError, match="100,000 at most: the aliases here expand to more"):
        load_sweep("mine.yaml")


def test_deep_nesting(workspace: Path) -> None:
    Path("mine.yaml").write_text("a: " + "[" * 100_000)
    with pytest.raises(UserError, match="more than 32 levels deep"):
        load_sweep("mine.yaml")
