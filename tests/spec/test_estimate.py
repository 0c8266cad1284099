"""Cost estimates: hand calculations with the numbers written out, and how the figures must move."""

import csv
import gzip
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from cppo_lab.spec.estimate import MEAN_RESPONSE, CostEstimate, estimate, estimate_disk
from cppo_lab.sweep.compose import compose

ROOT = Path(__file__).parents[2]
DENSE = ["core=verl", "model=qwen3_1_7b"]
MOE = ["core=verl", "model=qwen3_30b_a3b_base"]


def cost(*overrides: str, **verl: object) -> CostEstimate:
    """`verl`: settings of verl's own in the layout, with `__` for a dot."""
    composed = compose(list(overrides))
    settings = {f"actor_rollout_ref.{key.replace('__', '.')}": value for key, value in verl.items()}
    layout = composed.layout.model_copy(update={"verl": composed.layout.verl | settings})
    result = estimate(composed.run, layout)
    assert result is not None
    return result


def test_the_time_of_a_step_by_hand() -> None:
    """Qwen3-1.7B on 8 GPUs: 512 responses of 5154 tokens after prompts of 200, 64 for each of 8 engines."""
    parameters, kv = 1.721e9, 2 * 28 * 1024 * 2
    steps = 8192
    read = steps * parameters * 2 + 64 * 5154 * (200 + 2577) * kv
    rollout = 64 * 200 * 2 * parameters / (989e12 * 0.4) + steps * 0.006 + read / (3.35e12 * 0.5)
    update = 512 * 5354 * 6 * (parameters + 28 * 2048 * 5354) / (8 * 989e12 * 0.30)
    time = cost(*DENSE).time
    assert time.rollout == pytest.approx(rollout, rel=1e-9)
    assert time.update == pytest.approx(update, rel=1e-9)
    assert time.step == pytest.approx(rollout + update + 15)
    # 90 problems x 16 samples, before the first step and at each tenth.
    assert time.total == pytest.approx(600 + 1120 * time.step + 113 * (time.validation + 15))
    assert time.gpu_hours == pytest.approx(8 * time.total / 3600)


def test_the_memory_of_a_gpu_by_hand() -> None:
    """Qwen3-1.7B with FSDP2 on 8 GPUs, micro-batches of 20480 tokens."""
    parameters, tokens, width, vocabulary = 1.721e9, 20480, 2048, 151_936
    memory = cost(*DENSE).memory
    assert memory.state == pytest.approx(16 * parameters / 8)
    gathered = 2 * 2 * (parameters / 28 + vocabulary * width)
    assert memory.activations == pytest.approx(tokens * width * (27 * 2 + 56) + gathered)
    assert memory.logits == pytest.approx(tokens * vocabulary * 8)
    assert memory.training == pytest.approx(memory.state + memory.activations + memory.logits + 6e9)
    assert memory.rollout == pytest.approx(memory.state + 0.6 * 80e9 + 6e9)
    assert memory.kv_cache == pytest.approx(0.6 * 80e9 - 2 * parameters)
    assert memory.kv_needed == pytest.approx((2048 + 8192) * 2 * 28 * 1024 * 2)


def test_the_memory_of_a_mixture_of_experts_by_hand() -> None:
    """Qwen3-30B-A3B with Megatron on 32 GPUs: tensor 4, expert 8, AdamW spread over all and resting on the host."""
    total, active = 30.532e9, 3.353e9
    memory = cost(*MOE).memory
    local = (total - active) / 8 + active / 4
    assert memory.state == pytest.approx(6 * local + 12 * total / 32)
    assert memory.logits == pytest.approx(20480 * 151_936 * 8 / 4)
    assert memory.activations == pytest.approx(20480 * 2048 * (47 * 2 + 96) / 4)
    assert memory.rollout == pytest.approx(0.8 * 80e9 + 6e9)
    assert memory.kv_cache == pytest.approx(2 * 0.8 * 80e9 - 2 * total)


@pytest.mark.parametrize(
    ("settings", "layers", "inputs"),
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
    memory = cost(*MOE, **{f"{section}{key}": value for key, value in settings.items()}).memory
    assert memory.activations == pytest.approx(20480 * 2048 * (inputs * 2 + layers * 96) / 4)
    assert memory.fits is (layers < 30)
    whole = cost(*DENSE, model__enable_gradient_checkpointing=False).memory  # with FSDP
    assert not whole.fits and whole.activations > 20480 * 2048 * 28 * 56


def test_a_small_cache_or_an_engine_that_takes_few_responses_makes_them_wait() -> None:
    """64 for each engine, 32 at a time: twice as many decoding steps as their mean length."""
    assert cost(*MOE, "layout.rollout_memory=0.3").time.rollout > 1.5 * cost(*MOE).time.rollout
    few = cost(*DENSE, rollout__max_num_seqs=32).time
    parameters, kv, steps = 1.721e9, 2 * 28 * 1024 * 2, 64 * 5154 / 32
    read = steps * parameters * 2 + 64 * 5154 * (200 + 2577) * kv
    rollout = 64 * 200 * 2 * parameters / (989e12 * 0.4) + steps * 0.006 + read / (3.35e12 * 0.5)
    assert few.rollout == pytest.approx(rollout, rel=1e-9)
    assert cost(*DENSE, rollout__max_num_seqs=256).time == cost(*DENSE).time  # verl's own


NODES = ("one_node", "two_nodes", "four_nodes")
FITS = {
    "model=qwen3_1_7b": NODES,
    "model=qwen3_8b_base": NODES,
    "model=qwen3_30b_a3b_base": (*(f"{name}_megatron" for name in NODES), "four_nodes_moe"),
}


def test_what_the_shipped_layouts_are_for_fits() -> None:
    for model, layouts in FITS.items():
        for layout in layouts:
            memory = cost("core=verl", model, f"layout={layout}").memory
            assert memory.fits and memory.verdict.startswith("fits in 80 GB (peak "), (model, layout)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([*MOE, "layout=one_node"], "peak 115 GB, in rollout"),
        ([*MOE, "layout=four_nodes"], "the rollout engine lacks"),
        ([*MOE, "layout=four_nodes_megatron", "layout.nodes=1"], "in training"),
        (["core=verl", "model=qwen3_8b_base", "layout.rollout_memory=0.85"], "in rollout"),
        ([*DENSE, "layout.tokens_per_device=65536"], "in training"),
    ],
    ids=str,
)
def test_what_does_not_fit(overrides: list[str], reason: str) -> None:
    memory = cost(*overrides).memory
    assert not memory.fits
    assert memory.verdict.startswith("does not fit in 80 GB (")
    assert reason in memory.verdict


def test_earlier_policies_take_the_memory_of_the_nodes() -> None:
    """The current one and k earlier ones, float32, spread over the nodes; none without staleness."""
    eight = ["core=verl", "model=qwen3_8b_base", "layout=two_nodes"]
    for staleness, copies in ((0, 0), (1, 2), (8, 9)):
        memory = cost(*eight, f"rollout.staleness={staleness}").memory
        assert memory.host == pytest.approx(copies * 8.19e9 * 4 / 2, rel=0.01)
        assert memory.peak == cost(*eight).memory.peak
        half = cost(*eight, f"rollout.staleness={staleness}", "optim.master_dtype=bfloat16").memory
        assert half.host == memory.host / 2


def test_runs_without_gpus_have_no_estimate() -> None:
    for overrides in ([], ["core=verl", "model=tiny_qwen3"]):
        composed = compose(overrides)
        assert estimate(composed.run, composed.layout) is None
    small = cost("core=verl", "model=tiny_qwen3", "layout=one_node")  # a model of our own on a GPU
    assert small.memory.fits and small.time.update < 0.01


@pytest.mark.parametrize(
    ("overrides", "training", "recorded"),
    [
        # Gigabytes of 1.721e9 parameters: two checkpoints of float32 weights and two moments, and weights.
        (DENSE, 1.721 * 28, 1.721 * 4),
        ([*DENSE, "+layout.verl={trainer.max_actor_ckpt_to_keep: 3}"], 1.721 * 40, 1.721 * 4),
        # All of 1120 / 10; with those of every 5th step as well.
        ([*DENSE, "+layout.verl={trainer.max_actor_ckpt_to_keep: null}"], 1.721 * (112 * 12 + 4), 1.721 * 4),
        ([*DENSE, "+layout.verl={trainer.max_actor_ckpt_to_keep: null}", "layout.checkpoint_every=5"],
         1.721 * (224 * 12 + 4), 1.721 * 4),
        ([*DENSE, "rollout.staleness=2"], 1.721 * (2 * 20 + 4), 1.721 * 4),  # two earlier policies in each
        ([*DENSE, "optim.lora_rank=8", "optim.lora_alpha=8"], 1.721 * 12, 1.721 * 4),
        ([*DENSE, "optim.master_dtype=bfloat16"], 1.721 * 14, 1.721 * 2),
        ([*MOE, "layout=four_nodes_megatron"], 30.532 * 30, 30.532 * 2),
    ],
    ids=str,
)  # fmt: skip
def test_the_disk_of_checkpoints(overrides: list[str], training: float, recorded: float) -> None:
    composed = compose(overrides)
    disk = estimate_disk(composed.run, composed.layout)
    assert disk is not None
    assert (disk.training / 1e9, disk.recorded / 1e9) == pytest.approx((training, recorded))


def test_mean_lengths_are_those_of_the_papers_curves() -> None:
    lengths = defaultdict(list)
    with gzip.open(ROOT / "reports/paper/training_diagnostics.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "response_length_k":
                lengths[row["model"], row["method"]].append(1000 * float(row["value"]))
    means = {key: fmean(values) for key, values in lengths.items()}
    for repository, given in MEAN_RESPONSE.items():
        assert given == round(means[repository.removeprefix("Qwen/"), "cppo"])
    ratios = {
        (model, method): mean / means[model, "cppo"]
        for (model, method), mean in means.items()
        if method != "cppo"
    }
    assert min(ratios, key=ratios.__getitem__) == ("Qwen3-30B-A3B-Base", "trm_max")
    assert round(min(ratios.values()), 2) == 0.16
    assert round(max(ratios.values()), 2) == 1.28


def test_the_documented_costs_are_the_estimated_ones() -> None:
    text = (ROOT / "docs/paper_settings.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `qwen3_")]
    assert len(rows) == 11
    for cells in rows:
        model, layout, hours, gpu_hours, peak = (cell.strip().strip("`") for cell in cells)
        found = cost("core=verl", f"model={model}", f"layout={layout}")
        assert hours == f"{found.time.hours:.0f}"
        assert gpu_hours == f"{found.time.gpu_hours:.0f}"
        assert peak == f"{found.memory.peak / 1e9:.0f} GB"
