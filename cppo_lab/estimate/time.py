"""GPU-hours of a run: decoding bounded by memory traffic and by FLOPs, training at a stated share of the peak."""

from dataclasses import dataclass

from cppo_lab.estimate import assumptions as given
from cppo_lab.estimate.shape import Amounts, ModelShape
from cppo_lab.spec import LayoutSpec


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of one training step, of one validation and of the whole run, on `devices` GPUs."""

    rollout: float
    update: float
    overhead: float
    validation: float
    total: float
    devices: int

    @property
    def step(self) -> float:
        """Seconds of one training step, validation excluded."""
        return self.rollout + self.update + self.overhead

    @property
    def hours(self) -> float:
        """Wall-clock hours of the run."""
        return self.total / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs together."""
        return self.hours * self.devices


def estimate_time(shape: ModelShape, amounts: Amounts, layout: LayoutSpec) -> TimeEstimate:
    """The time of a run on H100s."""
    rollout = sampling_seconds(shape, amounts, layout, amounts.responses)
    validation = sampling_seconds(shape, amounts, layout, amounts.validation_responses)
    update = update_seconds(shape, amounts, layout)
    total = (
        given.START
        + amounts.steps * (rollout + update + given.STEP_OVERHEAD)
        + amounts.validations * (validation + given.STEP_OVERHEAD)
    )
    return TimeEstimate(rollout, update, given.STEP_OVERHEAD, validation, total, layout.devices)


def sampling_seconds(shape: ModelShape, amounts: Amounts, layout: LayoutSpec, responses: int) -> float:
    """Seconds to sample `responses` responses, spread evenly over the rollout engines.

    An engine of g GPUs decodes for as many steps as the longest response has tokens, which some response of a batch
    nearly always reaches; or for more, if the KV cache or the engine's limit allows fewer concurrent responses. Each
    step reads all weights (a batch touches every expert) and costs DECODE_OVERHEAD; each token reads the keys and
    values of the tokens before it, T / 2 on average: squares of the mean length approximate the mean of squares.
    """
    gpus = layout.rollout_tensor_parallel
    share = responses * gpus / layout.devices  # of one engine
    tokens = share * amounts.response
    steps = max(amounts.longest_response, tokens / concurrent(shape, amounts, layout))
    kv_token = kv_bytes(shape)
    bandwidth = gpus * given.BANDWIDTH * given.BANDWIDTH_SHARE
    traffic = (
        steps * shape.parameters * given.WEIGHT + tokens * (amounts.prompt + amounts.response / 2) * kv_token
    )
    compute = tokens * 2 * shape.active / (gpus * given.BF16_FLOPS * given.DECODE_SHARE)
    prefill = share * amounts.prompt * 2 * shape.active / (gpus * given.BF16_FLOPS * given.PREFILL_SHARE)
    return prefill + steps * given.DECODE_OVERHEAD + max(traffic / bandwidth, compute)


def update_seconds(shape: ModelShape, amounts: Amounts, layout: LayoutSpec) -> float:
    """Seconds of all minibatch updates of a step: 6 FLOPs per active parameter and token, and causal attention's.

    Bypass mode recomputes no log-probabilities, and there is no reference model.
    """
    mfu = given.TRAINING_MFU_MOE if shape.is_moe else given.TRAINING_MFU
    length = amounts.prompt + amounts.response
    per_token = 6 * (shape.active + shape.layers * shape.width * length)
    return amounts.responses * length * per_token / (layout.devices * given.BF16_FLOPS * mfu)


def concurrent(shape: ModelShape, amounts: Amounts, layout: LayoutSpec) -> float:
    """Concurrent responses of mean length in one rollout engine, limited by KV cache and settings; at least 1."""
    memory = layout.rollout_tensor_parallel * layout.rollout_memory * layout.device_memory_gb * 1e9
    room = memory - shape.parameters * given.WEIGHT
    most = int(layout.verl.get(given.MAX_SEQUENCES_KEY, given.MAX_SEQUENCES))
    return max(1.0, min(most, room / (kv_bytes(shape) * (amounts.prompt + amounts.response))))


def kv_bytes(shape: ModelShape) -> float:
    """Bytes of keys and values of one token."""
    return 2.0 * shape.layers * shape.kv_width * given.KV
