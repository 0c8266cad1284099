"""Cost estimates: hand calculations with the numbers written out, and how the figures must move."""

import re
from dataclasses import replace
from functools import cache, partial

import pandas as pd
import pytest

from cppo_lab.spec.job import (
    MAX_SEQUENCES_KEY,
    MEAN_RESPONSE,
    OFFLOAD_POLICY,
    Amounts,
    CostEstimate,
    ModelShape,
    TimeEstimate,
    estimate,
    estimate_disk,
    estimate_time,
    layout_tag,
)
from cppo_lab.sweep.compose import Composed, compose
from tests.conftest import ROOT

DENSE, MOE = "core=verl model=qwen3_1_7b", "core=verl model=qwen3_30b_a3b_base"
ALL_KEPT = f"{DENSE} +layout.verl={{trainer.max_actor_ckpt_to_keep:null}}"


@cache
def composed(words: str) -> Composed:
    return compose(words.split())


def cost(words: str, **verl: object) -> CostEstimate:
    """`verl`: settings of verl's own in the layout, with `__` for a dot."""
    made = composed(words)
    settings = {f"actor_rollout_ref.{key.replace('__', '.')}": value for key, value in verl.items()}
    layout = made.layout.model_copy(update={"verl": made.layout.verl | settings})
    return estimate(made.run, layout)


def rollout_seconds(steps: float) -> float:
    """Of Qwen3-1.7B on 8 GPUs: 512 responses of 5154 tokens after prompts of 200, 64 for each of 8 engines."""
    parameters, kv = 1.721e9, 2 * 28 * 1024 * 2
    read = steps * parameters * 2 + 64 * 5154 * (200 + 2577) * kv
    return 64 * 200 * 2 * parameters / (989e12 * 0.4) + steps * 0.003 + read / (3.35e12 * 0.8)


def test_the_time_of_a_step_by_hand() -> None:
    parameters, rollout = 1.721e9, rollout_seconds(8192)
    update = 512 * 5354 * 6 * (parameters + 28 * 2048 * 5354) / (8 * 989e12 * 0.30)
    time = cost(DENSE).time
    assert time.rollout == pytest.approx(rollout, rel=1e-9)
    assert time.update == pytest.approx(update, rel=1e-9)
    assert time.step == pytest.approx(rollout + update + 15 + 2 * parameters / 4e9)
    # 90 problems x 16 samples, before the first step and at each tenth.
    assert time.total == pytest.approx(600 + 1120 * time.step + 113 * (time.validation + 15))
    assert time.gpu_hours == pytest.approx(8 * time.total / 3600)


def test_the_memory_of_a_gpu_by_hand() -> None:
    """Qwen3-1.7B with FSDP2 on 8 GPUs, micro-batches of 20480 tokens."""
    parameters, tokens, width, vocabulary = 1.721e9, 20480, 2048, 151_936
    memory = cost(DENSE).memory
    state, logits = 16 * parameters / 8, tokens * vocabulary * 2 + 2**29
    activations = tokens * width * (27 * 2 + 56) + 2 * 2 * (
        parameters / 28 + vocabulary * width
    )  # gathered, too
    expected = {
        "state": state,
        "activations": activations,
        "logits": logits,
        "training": state + activations + logits + 6e9,
        "rollout": state + 0.6 * 80e9 + 6e9,
        "kv_cache": 0.6 * 80e9 - 2 * parameters,
        "kv_needed": (2048 + 8192) * 2 * 28 * 1024 * 2,
    }
    assert {name: getattr(memory, name) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    "words, each",
    [("", 16), ("optim.master_dtype=bfloat16", 8), ("optim.lora_rank=32 optim.lora_alpha=32", 4)],
)
def test_what_fsdp_keeps_of_a_parameter(words: str, each: int) -> None:
    assert cost(f"{DENSE} {words}").memory.state == pytest.approx(each * 1.721e9 / 8)


def test_the_memory_of_a_mixture_of_experts_by_hand() -> None:
    """Qwen3-30B-A3B with Megatron on 32 GPUs: tensor 4, expert 8, AdamW spread over all and resting on the host."""
    total, active = 30.532e9, 3.353e9
    memory = cost(MOE).memory
    expected = {
        "state": 6 * ((total - active) / 8 + active / 4) + 12 * total / 32,
        "logits": 20480 * 151_936 * 6 / 4 + 2**29,
        "activations": 20480 * 2048 * (47 * 2 + 96) / 4,
        "rollout": 0.8 * 80e9 + 6e9,
        "kv_cache": 2 * 0.8 * 80e9 - 2 * total,
    }
    assert {name: getattr(memory, name) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    "settings, layers, inputs",
    [
        ({"granularity": None}, 48, 0),  # as verl has it
        ({"granularity": "selective"}, 48, 0),
        ({"num_layers": 4}, 4, 44),
        ({"method": "block", "num_layers": 12}, 37, 11),
    ],
    ids=str,
)
def test_activations_follow_what_is_recomputed(settings: dict[str, object], layers: int, inputs: int) -> None:
    """`layers` are there as a whole, of `inputs` others the inputs alone."""
    section = "actor__megatron__override_transformer_config__recompute_"
    memory = cost(MOE, **{f"{section}{key}": value for key, value in settings.items()}).memory
    assert memory.activations == pytest.approx(20480 * 2048 * (inputs * 2 + layers * 96) / 4)
    assert memory.fits is (layers < 30)
    whole = cost(DENSE, model__enable_gradient_checkpointing=False).memory  # with FSDP
    assert not whole.fits and whole.activations > 20480 * 2048 * 28 * 56


def test_a_small_cache_or_an_engine_that_takes_few_responses_makes_them_wait() -> None:
    """64 for each engine, 32 at a time: twice as many decoding steps as their mean length."""
    assert cost(f"{MOE} layout.rollout_memory=0.3").time.rollout > 1.5 * cost(MOE).time.rollout
    few = cost(DENSE, rollout__max_num_seqs=32).time
    assert few.rollout == pytest.approx(rollout_seconds(64 * 5154 / 32), rel=1e-9)
    assert cost(DENSE, rollout__max_num_seqs=256).time == cost(DENSE).time  # verl's own


# What others have published: steps, by NeMo-RL 0.4 (docs/about/performance-summary.md: Llama-3.1-8B, Qwen3-30B-A3B and
# Qwen3-32B on H100s), and the generation of verl's steps on H20s (docs/advance/fully_async.md: Qwen2.5-Math-7B; its
# table of Qwen3-30B-A3B). Neither has lengths of prompts, and verl's have no mean: 200 and the given numbers are ours.
LLAMA = ModelShape(8.03e9, 8.03e9, 32, 4096, 1024, 128_256)
MIXTURE = ModelShape(30.532e9, 3.353e9, 48, 2048, 512, 151_936)
QWEN_32B = ModelShape(32.76e9, 32.76e9, 64, 5120, 1024, 151_936)
QWEN_7B = ModelShape(7.616e9, 7.616e9, 28, 3584, 512, 152_064)
QWEN_8B = ModelShape(8.191e9, 8.191e9, 36, 4096, 1024, 151_936)
H20 = {"device_tflops": 148.0, "device_gb_per_second": 4000.0, "device_memory_gb": 96.0}
STEPS = [  # model, nodes, tensor parallelism of the rollout, responses, mean, longest, seconds
    (LLAMA, 2, 1, 2048, 860, 4096, 97.7),
    (MIXTURE, 4, 4, 2048, 2954, 4096, 225.0),
    (QWEN_32B, 4, 4, 2048, 3006, 4096, 393.0),
]
GENERATIONS = [(MIXTURE, 16, 4, 8192, 2500, 8192, 348.0), (QWEN_7B, 4, 1, 8192, 1500, 28_672, 357.0)]
# vLLM 0.30, Qwen3-8B on one H100: users, tokens of the prompt and of the response, milliseconds of a decoding step.
DECODING = [(396, 128, 1024, 29.7), (40, 2048, 2048, 14.2), (7, 8192, 512, 14.0)]


def published(
    shape: ModelShape, nodes: int, parallel: int, responses: int, mean: float, longest: int, **device: float
) -> TimeEstimate:
    settings = {"nodes": nodes, "rollout_tensor_parallel": parallel} | device
    layout = composed(DENSE).layout.model_copy(update=settings)
    return estimate_time(shape, Amounts(responses, 0, 200, mean, 2048, longest, 1, 0), layout)


def test_published_runs_take_what_the_estimate_says() -> None:
    ratios = []
    for *setting, seconds in STEPS:
        time = published(*setting)
        # NeMo-RL computes log-probabilities again, a third of the update's FLOPs.
        ratios.append((time.step + time.update / 3) / seconds)
    ratios += [published(*setting, **H20).rollout / seconds for *setting, seconds in GENERATIONS]
    for users, prompt, response, milliseconds in DECODING:
        engine = {"devices_per_node": 1, "rollout_memory": 0.9, "verl": {MAX_SEQUENCES_KEY: users}}
        layout = composed(DENSE).layout.model_copy(update=engine)
        amounts = Amounts(users, 0, prompt, response, prompt, response, 1, 0)
        prefill = users * prompt * 2 * QWEN_8B.active / (989e12 * 0.4)
        seconds = estimate_time(QWEN_8B, amounts, layout).rollout - prefill
        ratios.append(1000 * seconds / response / milliseconds)
    assert [round(ratio, 2) for ratio in ratios] == [0.92, 1.05, 0.76, 0.78, 0.72, 1.01, 1.12, 0.88]


def test_a_device_of_another_speed() -> None:
    """Half the bandwidth and a tenth of the FLOPs; a layout that names neither keeps its tag."""
    slow = cost(f"{DENSE} +layout.device_tflops=98.9 +layout.device_gb_per_second=1675").time
    fast = cost(DENSE).time
    assert slow.update == pytest.approx(10 * fast.update)
    assert 1.5 * fast.rollout < slow.rollout < 10 * fast.rollout
    assert layout_tag(composed("core=verl layout=one_node").layout) == "one_node@0ffbd27917c0"


def test_one_small_gpu_trains_what_it_can_hold() -> None:
    """24 GB, with the state of 16 bytes per parameter in host memory; without, only the smallest model fits."""
    rests = OFFLOAD_POLICY.removeprefix("actor_rollout_ref.").replace(".", "__")
    words = "core=verl layout=workstation model=qwen3_{}_base"
    fits = {
        (size, policy): cost(words.format(size), **{rests: policy}).memory
        for size in ("0_6b", "1_7b", "8b")
        for policy in (True, False)
    }
    held = {
        key
        for key, memory in fits.items()
        if memory.verdict.startswith("fits in 24 GB (peak 18 GB, in rollout)")
    }
    assert held == {("0_6b", True), ("1_7b", True)}
    assert "the rollout engine lacks 6 GB" in fits["8b", True].verdict
    assert composed("core=verl model=qwen3_0_6b_base").layout.name == "workstation"


@pytest.mark.parametrize(
    "words, reason",
    {
        f"{MOE} layout=one_node": "peak 115 GB, in rollout",
        f"{MOE} layout=four_nodes": "the rollout engine lacks 15 GB",
        f"{MOE} layout=four_nodes_megatron layout.nodes=1": "peak 84 GB, in training",
        "core=verl model=qwen3_8b_base layout.rollout_memory=0.85": "peak 82 GB, in rollout",
        f"{DENSE} layout.tokens_per_device=163840": "peak 98 GB, in training",
    }.items(),
    ids=str,
)
def test_what_does_not_fit(words: str, reason: str) -> None:
    memory = cost(words).memory
    assert not memory.fits
    assert memory.verdict.startswith("does not fit in 80 GB (")
    assert reason in memory.verdict


def test_earlier_policies_take_the_memory_of_the_nodes() -> None:
    """The current one and k earlier ones, float32, spread over the nodes; none without staleness."""
    eight = "core=verl model=qwen3_8b_base layout=two_nodes"
    for staleness, copies in ((0, 0), (1, 2), (8, 9)):
        stale = f"{eight} rollout.staleness={staleness}"
        memory = cost(stale).memory
        assert memory.host == pytest.approx(copies * 8.19e9 * 4 / 2, rel=0.01)
        assert memory.peak == cost(eight).memory.peak
        half = cost(f"{stale} optim.master_dtype=bfloat16").memory
        assert half.host == memory.host / 2


def test_runs_without_gpus_have_no_estimate() -> None:
    for words in ("", "core=verl model=tiny_qwen3"):
        assert cost(words) is None
    small = cost("core=verl model=tiny_qwen3 layout=one_node")  # a model of our own on a GPU
    assert small.memory.fits and small.time.update < 0.01


@pytest.mark.parametrize(
    "words, training, recorded",
    [
        # Bytes per parameter: two checkpoints of float32 weights and two moments, and weights.
        (DENSE, 28, 4),
        (ALL_KEPT.replace("null", "3"), 40, 4),
        # All of 1120 / 10; with those of every 5th step as well.
        (ALL_KEPT, 112 * 12 + 4, 4),
        (f"{ALL_KEPT} layout.checkpoint_every=5", 224 * 12 + 4, 4),
        (f"{DENSE} rollout.staleness=2", 2 * 20 + 4, 4),  # two earlier policies in each
        (f"{DENSE} optim.lora_rank=8 optim.lora_alpha=8", 12, 4),
        (f"{DENSE} optim.master_dtype=bfloat16", 14, 2),
        (f"{MOE} layout=four_nodes_megatron", 30, 2),
    ],
    ids=str,
)
def test_the_disk_of_checkpoints(words: str, training: float, recorded: float) -> None:
    made = composed(words)
    disk, parameters = estimate_disk(made.run, made.layout), made.run.model.parameters * 1e9
    assert (disk.training / parameters, disk.recorded / parameters) == pytest.approx((training, recorded))


def test_mean_lengths_are_those_of_the_papers_curves() -> None:
    curves = pd.read_csv(ROOT / "reports/paper/training_diagnostics.csv.gz")
    lengths = curves[curves.metric == "response_length_k"]
    means = 1000 * lengths.groupby(["method", "model"]).value.mean()
    for repository, given in MEAN_RESPONSE.items():
        assert given == round(means["cppo", repository.removeprefix("Qwen/")])
    ratios = means.drop("cppo").div(means["cppo"], level="model")
    assert ratios.idxmin() == ("trm_max", "Qwen3-30B-A3B-Base")
    assert (round(ratios.min(), 2), round(ratios.max(), 2)) == (0.16, 1.28)


def test_the_documented_costs_are_the_estimated_ones() -> None:
    text = (ROOT / "docs/paper_settings.md").read_text()
    rows = re.findall(r"^\| `(qwen3_\w+)` \| `(\w+)` \| (\d+) \| (\d+) \| (\d+) GB \|", text, re.MULTILINE)
    assert len(rows) == 11
    for model, layout, *shown in rows:
        costs = cost(f"core=verl model={model} layout={layout}")
        numbers = (costs.time.hours, costs.time.gpu_hours, costs.memory.peak / 1e9)
        assert shown == [f"{number:.0f}" for number in numbers]


@pytest.mark.parametrize("max_staleness, longest", [(1, 8000), (100, 1000)])
def test_an_asynchronous_engine_waits_less_for_the_longest_response(max_staleness: int, longest: int) -> None:
    """It has that many batches more for it, and at least as long as responses are on average."""
    amounts = Amounts(256, 256, 200, 1000, 2048, 16000, 10, 2)
    time = partial(estimate_time, QWEN_8B, layout=composed(DENSE).layout)
    run, plain = time(amounts, max_staleness=max_staleness), time(amounts)
    assert run.rollout == time(replace(amounts, longest_response=longest)).rollout < plain.rollout
    assert run.validation == plain.validation
