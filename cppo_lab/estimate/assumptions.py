"""Every number that the estimates assume, with its unit and source.

Peaks are data-sheet values. The shares of them that a run reaches, and the fixed costs, are assumptions made before
any run of ours on such a machine: the resulting hours are accurate to a factor of UNCERTAINTY either way.
"""

# One NVIDIA H100 SXM 80 GB, from its data sheet.
BF16_FLOPS = 989e12  # per second, dense tensor cores
BANDWIDTH = 3.35e12  # bytes per second

UNCERTAINTY = 2.0  # true hours lie between hours / 2 and hours * 2

# Training. MFU counts 6 FLOPs per active parameter and token; the recomputation of checkpointed layers lowers it.
# dense, packed long sequences (assumption)
TRAINING_MFU = 0.30
TRAINING_MFU_MOE = 0.15  # small experts and their exchange between GPUs (assumption)

# Rollout.
BANDWIDTH_SHARE = 0.5  # of the peak that decoding reaches (assumption)
PREFILL_SHARE = 0.4  # of the peak FLOPs that prefill reaches (assumption)
DECODE_SHARE = 0.25  # of the peak FLOPs that decoding reaches where it is bound by them (assumption)
# seconds per decoding step: scheduling, sampling, Top-K log-probabilities (assumption)
DECODE_OVERHEAD = 0.006
PROMPT_TOKENS = 200  # mean (assumption)
# Maximum number of concurrent responses of an engine: verl 0.9.1's default, and the key by which a layout sets it.
MAX_SEQUENCES = 256
MAX_SEQUENCES_KEY = "actor_rollout_ref.rollout.max_num_seqs"

# Once per training step: grading, waking and sleeping of the rollout engine, transfer of weights and batch.
STEP_OVERHEAD = 15.0  # seconds (assumption)
START = 600.0  # seconds: loading, compiling, capturing graphs (assumption)

PROBLEMS_PER_BENCHMARK = 30  # AIME
# Mean response length in tokens over all training steps of CPPO, read off the paper's curves of response length
# (reports/paper/training_diagnostics.csv.gz, metric response_length_k; a test compares). The other methods of a model
# lie between 0.16 (TRM-Max on 30B-A3B) and 1.28 times it.
MEAN_RESPONSE = {
    "Qwen/Qwen3-1.7B": 5154,
    "Qwen/Qwen3-1.7B-Base": 3324,
    "Qwen/Qwen3-8B-Base": 3717,
    "Qwen/Qwen3-30B-A3B-Base": 6686,
}
MEAN_SHARE = 0.5  # of the maximum length, for any other model (assumption)

# Bytes per parameter.
WEIGHT = 2  # bfloat16, of the rollout engine and of computation
# float32 weights and gradients, and AdamW's two float32 moments (verl: fsdp_config.model_dtype=fp32)
FSDP_STATE = 16
MEGATRON_LOCAL = 6  # bfloat16 weights and float32 gradients, on every GPU that holds the shard
MEGATRON_OPTIMISER = 12  # float32 weights and two moments, spread over all GPUs (distributed optimiser)

# Bytes of activations.
# per token, layer and unit of width: the bfloat16 input of each layer (gradient checkpointing)
CHECKPOINT = 2
# per token and unit of width: what one layer of Qwen3 keeps for its backward pass where it is not recomputed, in
# bfloat16, counted by hooks on saved tensors (a test counts again: 55.3 at 1.7B's widths, 52.7 at 8B's, 95.1 at 30B's)
LAYER = 56
LAYER_MOE = 96
LOGIT = 8  # per token and symbol: bfloat16 logits and gradient, and one float32 copy
KV = 2  # bfloat16 keys and values

# bytes: CUDA context, NCCL buffers, fragmentation, what a sleeping rollout engine keeps (assumption)
RESERVE = 6e9
