"""Cost of our losses in verl: one update of its TrainingWorker (FSDP2 engine, CPU), compared with verl's `vanilla`.

    python benchmarks/verl_loss.py [--quick]

cppo_topk_over_vanilla      CPPO with the Top-20 TV measured in the logits processor, which also gives the
                            log-probabilities and the entropy; vanilla gives neither divergence nor entropy.
dppo_binary_over_vanilla    DPPO on the Binary TV, through the same processor without Top-K.
mismatch_share_of_update    processor time of the metrics `mismatch/*` by that of the rest, in the update of cppo_topk.

An update: forward, loss, backward, clipping and AdamW of a Qwen3 of 29M weights (4 layers, width 512, vocabulary
32768) on 8 responses in one minibatch of 4 micro-batches. Ratios are of processor times, which a busy machine does not
stretch as it does wall times: medians over rounds in which all take turns, on one thread.

The last line is JSON, see `common.py`. Needs verl 0.9.1 and TransferQueue.
"""

import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import Clock, arguments, finish, in_turn
from torch import Tensor

K = 20
VOCABULARY = 32768
TARGETS = {"cppo_topk_over_vanilla": 1.10, "mismatch_share_of_update": 0.02}  # at most
CPPO = {"delta": 0.15, "delta_b": 0.015, "w_min": 0.8, "delta_b_mode": "adaptive"}
UNITS = {"*_over_vanilla": "x", "*": ""}


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


def recorded(responses: int, prompt: int, length: int) -> dict[str, Tensor]:
    """Columns of random responses; the longest and the shortest differ by a half."""
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for n in torch.linspace(length // 2, length, responses).long().tolist():
        ids = torch.randint(VOCABULARY, (prompt + n,), generator=generator)
        of_response = {
            "input_ids": ids,
            "prompts": ids[:prompt],
            "responses": ids[prompt:],
            "position_ids": torch.arange(prompt + n),
            "response_mask": torch.ones(n).long(),
            "loss_mask": torch.ones(n).long(),
            "old_log_probs": torch.full((n,), -10.4),  # a random model's: -log V
            "advantages": torch.randn(1, generator=generator).expand(n),
            "minibatch_responses": torch.tensor([float(responses)]),
            "rollout_topk_ids": torch.rand(n, VOCABULARY, generator=generator).topk(K).indices.int(),
            "rollout_topk_logp": torch.full((n, K), -10.4).half(),
        }
        for name, row in of_response.items():
            rows[name].append(row)
    return {name: torch.nested.as_nested_tensor(row, layout=torch.jagged) for name, row in rows.items()}


def measured(shape: Sequence[int], rounds: int) -> dict[str, float]:
    """Each variant's processor time of an update over vanilla's in the same round, and the share of the mismatch in
    CPPO's, medians over the rounds.
    """
    from verl.utils import tensordict_utils as tu
    from verl.workers.config import PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss

    from cppo_lab.cores.verl import loss as policy_loss
    from tests.cores.verl.cpu_engine import join, make_worker  # before any of verl's engines
    from tests.cores.verl.recorded import actor, plain_actor

    clock = Clock()
    for name in ("log_ratios", "mismatch_sums", "report_mismatch", "summarise_mismatch"):
        clock.around(policy_loss, name)

    topk = actor("cppo", CPPO, estimator="topk", k=K, convention="union")
    losses = {
        "vanilla": partial(ppo_loss, config=plain_actor(PolicyLossConfig(loss_mode="vanilla"))),
        "cppo_topk": partial(policy_loss.trust_region_loss, config=topk),
        "dppo_binary": partial(policy_loss.trust_region_loss, config=actor("dppo", {"delta": 0.15})),
    }
    columns = recorded(*shape)
    of_mismatch: dict[str, list[float]] = defaultdict(list)

    def update(name: str) -> None:
        """With what the batch must carry for the loss."""
        data = tu.get_tensordict(dict(columns), {})
        ours = dict.fromkeys(("distillation_use_topk", "distillation_only"), name != "vanilla")
        sizes = dict.fromkeys(("mini_batch_size", "global_batch_size"), shape[0])
        tu.assign_non_tensor(data, temperature=1.0, calculate_entropy=False, **sizes, **ours)
        worker.set_loss_fn(losses[name])
        before = clock.seconds
        policy_loss.summarise_mismatch(tu.get(worker.train_mini_batch(data), "metrics"))
        of_mismatch[name].append(clock.seconds - before)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        join(0, 1, folder / "store")
        worker = make_worker(folder, micro_batch=shape[0] // 4, lr=1e-6, total_training_steps=1000)
        updates = in_turn({name: partial(update, name) for name in losses}, rounds)
        torch.distributed.destroy_process_group()
    cpu = {name: seconds for name, (_, seconds) in updates.items()}
    mismatch = np.array(of_mismatch["cppo_topk"][1:])
    return {
        "cppo_topk_over_vanilla": np.median(cpu["cppo_topk"] / cpu["vanilla"]),
        "dppo_binary_over_vanilla": np.median(cpu["dppo_binary"] / cpu["vanilla"]),
        "mismatch_share_of_update": np.median(mismatch / (cpu["cppo_topk"] - mismatch)),
    }


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "half the responses, shorter, one round behind the one that warms up").quick
    torch.set_num_threads(1)
    figures = measured((4, 8, 16), 1) if quick else measured((8, 48, 96), 5)
    finish(figures, UNITS, at_most=TARGETS, quick=quick)


if __name__ == "__main__":
    main()
