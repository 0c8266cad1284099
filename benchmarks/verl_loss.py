"""Cost of our losses in verl: one update of its TrainingWorker (FSDP2 engine, CPU), compared with verl's `vanilla`.

    python benchmarks/verl_loss.py [--quick]

cppo_topk_over_vanilla      CPPO with the Top-20 TV measured in the logits processor, which also gives the
                            log-probabilities and the entropy; vanilla gives neither divergence nor entropy.
dppo_binary_over_vanilla    DPPO on the Binary TV, through the same processor without Top-K.
grpo_over_vanilla           vanilla's rule through our path.
vanilla_entropy_over_vanilla  vanilla with verl's own entropy, which our losses report without being asked.
mismatch_share_of_update    processor time of the metrics `mismatch/*` by that of the rest, in the update of cppo_topk.

An update: forward, loss, backward, clipping and AdamW of a Qwen3 of 29M weights (4 layers, width 512, vocabulary
32768) on 8 responses in one minibatch of 4 micro-batches. Ratios are of processor times, which a busy machine does not
stretch as it does wall times: medians over rounds in which all take turns, on one thread. The last line is
JSON, see `common.py`. Needs verl 0.9.1 and TransferQueue.
"""

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import Clock, arguments, result

K = 20
VOCABULARY = 32768
TARGETS = {"cppo_topk_over_vanilla": 1.10, "mismatch_share_of_update": 0.02}  # at most
CPPO = {"delta": 0.15, "delta_b": 0.015, "w_min": 0.8, "delta_b_mode": "adaptive"}
GRPO = {"clip_low": 0.2, "clip_high": 0.28}


def save_model(folder: Path) -> None:
    """A random Qwen3."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)


def recorded(responses: int, prompt: int, length: int) -> dict[str, torch.Tensor]:
    """Columns of random responses; the longest and the shortest differ by a half."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.linspace(length // 2, length, responses).long().tolist()

    def nested(rows: Callable[[int], torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([rows(n) for n in lengths], layout=torch.jagged)

    ids = [torch.randint(VOCABULARY, (prompt + n,), generator=generator) for n in lengths]
    columns = {
        name: torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        for name, rows in {
            "input_ids": ids, "prompts": [row[:prompt] for row in ids], "responses": [row[prompt:] for row in ids]
        }.items()
    }  # fmt: skip
    logp = partial(torch.full, fill_value=-10.4)  # a random model's: -log V
    return columns | {
        "position_ids": nested(lambda n: torch.arange(prompt + n)),
        "response_mask": nested(lambda n: torch.ones(n).long()),
        "loss_mask": nested(lambda n: torch.ones(n).long()),
        "old_log_probs": nested(lambda n: logp((n,))),
        "advantages": nested(lambda n: torch.randn(1, generator=generator).expand(n)),
        "rollout_topk_ids": nested(
            lambda n: torch.rand(n, VOCABULARY, generator=generator).topk(K).indices.int()
        ),
        "rollout_topk_logp": nested(lambda n: logp((n, K)).half()),
    }


def variants() -> dict[str, tuple[Callable[..., Any], dict[str, bool]]]:
    """The loss of each variant, and what the batch must carry for it."""
    from verl.workers.config import PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss

    from cppo_lab.cores.verl.loss import trust_region_loss
    from tests.cores.verl.recorded import actor, plain_actor

    theirs = partial(ppo_loss, config=plain_actor(PolicyLossConfig(loss_mode="vanilla")))
    topk = actor("cppo", CPPO, estimator="topk", k=K, convention="union")
    own = {"distillation_use_topk": True, "distillation_only": True}
    return {
        "vanilla": (theirs, {}),
        "cppo_topk": (partial(trust_region_loss, config=topk), own),
        "dppo_binary": (partial(trust_region_loss, config=actor("dppo", {"delta": 0.15})), own),
        "grpo": (partial(trust_region_loss, config=actor("grpo", GRPO)), own),
        "vanilla_entropy": (theirs, {"calculate_entropy": True}),
    }


def update_ratios(responses: int, prompt: int, length: int, rounds: int) -> dict[str, float]:
    """Each variant's processor time of an update over vanilla's in the same round, and the share of the mismatch in
    CPPO's; medians over the rounds.
    """
    from verl.utils import tensordict_utils as tu

    from cppo_lab.cores.verl import loss as policy_loss
    from tests.cores.verl.cpu_engine import join, make_worker

    clock, shares = Clock(), []
    for owner, name in (
        (policy_loss, "log_ratios"),
        (policy_loss, "mismatch_sums"),
        (policy_loss, "report_mismatch"),
        (policy_loss, "summarise_mismatch"),
    ):
        clock.around(owner, name)
    columns, ways = recorded(responses, prompt, length), variants()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        join(0, 1, folder / "store")
        worker = make_worker(folder, micro_batch=responses // 4, lr=1e-6, total_training_steps=1000)
        for repeat in range(rounds + 1):
            for way, (loss, flags) in ways.items():
                data = tu.get_tensordict(dict(columns), {})
                known = {
                    "distillation_use_topk": False,
                    "distillation_only": False,
                    "calculate_entropy": False,
                }
                tu.assign_non_tensor(
                    data, temperature=1.0, mini_batch_size=responses, global_batch_size=responses, **known | flags
                )  # fmt: skip
                worker.set_loss_fn(loss)
                clock.seconds, started = 0.0, time.process_time()
                policy_loss.summarise_mismatch(tu.get(worker.train_mini_batch(data), "metrics"))
                if repeat:  # the first round warms up
                    seconds[way].append(time.process_time() - started)
                    if way == "cppo_topk":
                        shares.append(clock.seconds / (seconds[way][-1] - clock.seconds))
        torch.distributed.destroy_process_group()
    for way, values in seconds.items():
        print(f"{way}: {statistics.median(values):.2f} s", file=sys.stderr)
    first, *others = ways

    def ratio(ours: str, theirs: str) -> float:
        pairs = zip(seconds[ours], seconds[theirs], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    figures = {f"{way}_over_{first}": ratio(way, first) for way in others}
    return figures | {"mismatch_share_of_update": statistics.median(shares)}


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "half the responses, shorter, one round behind the one that warms up").quick
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    if importlib.util.find_spec("verl") is None:
        print("no verl: pip install '.[verl]'", file=sys.stderr)
    else:
        figures |= update_ratios(4, 8, 16, 1) if quick else update_ratios(8, 48, 96, 5)
    units = {"mismatch_share_*": "", "*": "x"}
    print(result("verl_loss", figures, units, at_most=TARGETS, absent={"*": "no verl"}, quick=quick).line())


if __name__ == "__main__":
    main()
