"""One vocabulary for every core: metric names with units, tag names, statuses, and what a collapse is.

Metric names are MLflow keys; `/` makes MLflow's UI group them. Steps are training steps (a rollout batch each).
Shares and accuracies are fractions in [0, 1]; only tables and axes turn them into percent.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def digest(text: str) -> str:
    """First 12 hex digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class MetricInfo:
    """What a metric is: `name` as logged, its `unit`, and a line of `meaning`."""

    name: str
    unit: str
    meaning: str


METRICS = tuple(
    MetricInfo(*texts)
    for texts in (
        # name, unit, meaning
        ("train/reward", "fraction", "mean verifier reward of the rollout batch"),
        ("train/reward_smoothed", "fraction", "the paper's own smoothed reward curve (reference only)"),
        ("train/response_length", "tokens", "mean response length of the rollout batch"),
        ("train/truncated_share", "fraction", "responses of the maximum length"),
        ("train/relative_logprob_error", "ratio", "sum |lp_train - lp_rollout| / sum |lp_rollout|"),
        ("train/mean_abs_probability_gap", "probability", "mean |pi - mu| of the sampled tokens"),
        ("train/zero_variance_group_share", "fraction", "groups whose rewards are all equal"),
        # Of asynchronous rollouts; also under the names that `age_metric` gives.
        ("train/staleness_mean", "steps", "mean age of the batch's tokens: updated batches since their mu"),
        ("train/staleness_max", "steps", "largest age of a token"),
        ("train/entropy", "nats", "mean entropy of the rollout policy (verl: of pi) at the visited states"),
        ("train/loss", "1", "mean loss over the minibatches of the step"),
        ("train/grad_norm", "1", "mean gradient norm before clipping"),
        ("val/best", "fraction", "highest score so far: mean validation over the benchmarks"),
        ("val/best_step", "step", "training step at which `val/best` was first reached"),
        ("val/final_mean", "fraction", "mean of the scores in the last 30 % of [0, T_stop] so far"),
        ("rule/masked_fraction", "fraction", "masked tokens / tokens with non-zero advantage"),
        ("rule/prefix_budget_share", "fraction", "of the masked: token test passes, prefix test fails"),
        ("rule/token_threshold_share", "fraction", "of the masked: rejected by the token threshold"),
        ("rule/divergence_mean", "nats or TV", "mean divergence D_t over response tokens"),
        ("rule/divergence_max", "nats or TV", "largest divergence D_t"),
        # The sampler's distance: noise between the engines, stale rollouts.
        ("rule/divergence_before_update_mean", "nats or TV", "mean D_t before the step's first update"),
        ("rule/divergence_before_update_p90", "nats or TV", "its p90, within 9.1 %; 0 below 1.5e-5"),
        ("rule/delta_b_mean", "nats or TV", "mean effective prefix-budget rate delta_b over responses"),
        ("rule/ratio_mean", "ratio", "mean importance ratio rho_t, each at most e^20"),
        ("rule/clip_fraction", "fraction", "tokens whose ratio was clipped"),
        ("rule/importance_weight_mean", "ratio", "weight for pi_old / mu (decoupled); 1 without rollout_is"),
        ("rule/rejected_fraction", "fraction", "tokens rejected for their pi_old / mu (decoupled)"),
        # Between sampler and trainer (maths/mismatch.py), over the step's updates; also under the names that
        # `mismatch_metric` gives.
        ("mismatch/k1", "nats", "KL(mu, pi), mean of -log rho"),
        ("mismatch/k3", "nats", "KL(mu, pi), mean of rho - 1 - log rho"),
        ("mismatch/chi_square", "1", "mean of rho^2, less 1"),
        ("mismatch/effective_sample_size", "fraction", "(sum rho)^2 / (n sum rho^2)"),
        ("mismatch/abs_log_ratio_p99", "nats", "99th percentile of |log rho|, within 9.1 %; 0 below 1.5e-5"),
        ("mismatch/abs_log_ratio_max", "nats", "largest |log rho|"),
        ("mismatch/token_mult_prob_error", "ratio", "mean of exp |log rho|"),
        ("perf/step_seconds", "s", "wall time of the training step, validation excluded"),
        ("perf/rollout_seconds", "s", "of it: sampling and grading"),
        ("perf/update_seconds", "s", "of it: minibatch updates"),
        ("perf/sampled_tokens_per_second", "tokens/s", "response tokens sampled per second of rollout"),
        ("perf/trained_tokens_per_second", "tokens/s", "response tokens trained per second of update"),
        ("perf/evaluation_seconds", "s", "wall time of the exact core's evaluation, not in step_seconds"),
        ("perf/mfu", "fraction", "model FLOPs of the update / peak of the devices"),
        ("perf/topk_megabytes", "MB", "mu's Top-K data sent to the trainer per rollout batch"),
        ("search/score", "fraction", "mean validation score of a trial's seeds so far, seed after seed"),
        ("search/final_score", "fraction", "mean of the last three validations, averaged over seeds"),
        ("search/best_score", "fraction", "highest validation, averaged over seeds"),
        ("search/mean_score", "fraction", "mean over all validations, averaged over seeds"),
        ("search/stability", "fraction", "1 - largest drop below the best so far, averaged over seeds"),
        # Of the exact core: mu is the rollout policy of the step, pi the policy after its last update.
        ("exact/rollout_return", "fraction", "J(mu), the expected reward of the rollout policy"),
        ("exact/return", "fraction", "J(pi), the expected reward after the step's updates"),
        ("exact/surrogate", "fraction", "L' = E_mu[R sum (rho_t - 1)], the gain that mu's responses predict"),
        ("exact/error", "fraction", "Delta = L' - (J(pi) - J(mu)), the part of it that is not realised"),
        ("exact/movement", "TV", "mean over positions of E_mu[D_t]; `_1` to `_8`: in one eighth"),
        ("exact/movement_before", "TV", "of mu from the policy before the step's first update"),
        (
            "exact/matched",
            "share",
            "whether the measured update got the movement of the training it goes along",
        ),
        ("exact/update_length", "ratio", "length of the measured update over that of the rule's own"),
        ("exact/update_movement", "TV", "of the measured update, from where `along.match` says"),
        ("exact/error_before", "fraction", "Delta of a stale mu before the step's first update"),
        ("exact/premise_visits", "fraction", "visits of mu with w_t D_t > delta after the updates"),
        ("exact/premise_positions", "fraction", "positions where some state that mu reaches has it"),
        ("exact/premise_prefixes", "fraction", "prefixes of mu with S_t > delta + delta_b W_(t-1)"),
        ("exact/bound", "fraction", "Proposition 4's bound on |Delta| at the measured divergences"),
        ("exact/bound_slack", "fraction", "the bound less |Delta|"),
        ("exact/product_bound", "fraction", "the bound in the suffix bound's product form"),
        ("exact/theorem_bound", "fraction", "Theorem 1's constant at the measured delta_b and l"),
        # Under MLflow's names where it has any: its page shows `system/` apart. Means since the step before.
        ("system/cpu_utilization_percentage", "%", "of all hardware threads of the machine"),
        ("system/system_memory_usage_megabytes", "MB", "of the machine"),
        ("system/system_memory_usage_percentage", "%", "of the machine"),
        ("system/disk_usage_percentage", "%", "of the disk that the run's folder is on"),
        ("system/disk_usage_megabytes", "MB", "of the disk that the run's folder is on"),
        ("system/disk_available_megabytes", "MB", "left on the disk that the run's folder is on"),
        ("system/network_receive_megabytes", "MB", "received by the machine since the attempt began"),
        ("system/network_transmit_megabytes", "MB", "sent by the machine since the attempt began"),
        ("system/process_cpu_percentage", "%", "process and descendants; 100 is one hardware thread"),
        ("system/process_memory_megabytes", "MB", "resident; what descendants share counts in each"),
        ("system/process_memory_peak_megabytes", "MB", "highest sample of it"),
    )
)
METRIC_BY_NAME = {metric.name: metric for metric in METRICS}

BEST, BEST_STEP, FINAL_MEAN = "val/best", "val/best_step", "val/final_mean"
LARGEST = 1e100  # MLflow returns infinity as the largest number there is; a report takes neither for a value
LATE_SHARE = 0.3  # of [0, T_stop], its end: the validations of `val/final_mean`
HORIZON = (
    "rollout.max_response_length"  # the key of the horizon of the exact core, also a parameter of its runs
)
SUMMARIES = ("avg", "base", "gain", "step")  # columns of the tables beside those of the benchmarks
MEAN = "mean"  # the pseudo-benchmark: unweighted mean over the benchmarks of a run
MOST_SAMPLES = 2**16 - 1  # answers to a problem of a validation: 16 bits in the record of outcomes count them
# {gpu}_memory_peak_megabytes is the highest sample; the rest is MLflow's.
_GPU = re.compile(
    r"system/gpu_\d+_(?:memory_usage_megabytes|memory_usage_percentage|memory_peak_megabytes"
    r"|utilization_percentage|power_usage_watts|power_usage_percentage)"
)
MISMATCH = "mismatch/"
BEFORE_UPDATE = "before_update/"  # at the weights before the step's first update
THIRDS = ("early", "middle", "late")  # of a response
DIVERGENCE_BEFORE = "rule/divergence_before_update_mean"
DIVERGENCE_BEFORE_P90 = "rule/divergence_before_update_p90"
_MISMATCH = re.compile(rf"{MISMATCH}(?:{BEFORE_UPDATE})?(?:(?:{'|'.join(THIRDS)})/)?(?P<name>\w+)")
_AGE = re.compile(r"train/staleness_share_\d+")
_POSITION = re.compile(r"exact/(?:movement|error)_[1-8]")
_ANSWER_RULE = re.compile(r"val/[^/]+/answer_rule_at_\d+")
_EVALUATION = re.compile(r"eval/[^/]+/avg_at_\d+")
_REWARD = re.compile(r"reward/(?:[^/]+/)?[^/]+")
# A number of samples has one name: `avg_at_08` is none.
_VALIDATION = re.compile(r"val/(?P<benchmark>[^/]+)/avg_at_(?P<samples>[1-9][0-9]{0,8})")


# Seeds at the first look at a sequential hypothesis: Student's t of fewer is decided by very large effects alone.
FIRST_LOOK = 4


def late_after(t_stop: float) -> float:
    """Steps above this are in the last LATE_SHARE of [0, T_stop].

    Rounded: in binary, 0.7 x 90 is below 63, and step 63 would be late.
    """
    return round((1 - LATE_SHARE) * t_stop, 6)


def early_until(t_stop: float) -> float:
    """Steps up to this are in the first LATE_SHARE of [0, T_stop]."""
    return round(LATE_SHARE * t_stop, 6)


def validation_metric(benchmark: str, samples: int = 16) -> str:
    """`val/<benchmark>/avg_at_<samples>`: Avg@k on a benchmark, or the mean of all (`benchmark=MEAN`)."""
    return f"val/{benchmark}/avg_at_{samples}"


def parse_validation_metric(name: str) -> tuple[str, int] | None:
    """`(benchmark, samples)` of a validation metric's name; None for any other metric."""
    match = _VALIDATION.fullmatch(name)
    return (match["benchmark"], int(match["samples"])) if match else None


def answer_rule_metric(benchmark: str, samples: int) -> str:
    """The share of responses that DAPO's `Answer:` rule accepts, next to Avg@k by mathematical equality."""
    return f"val/{benchmark}/answer_rule_at_{samples}"


def evaluation_metric(benchmark: str, samples: int) -> str:
    """`eval/<benchmark>/avg_at_<samples>`: Avg@k of a finished run's checkpoint, at its step (`cppo evaluate`)."""
    return f"eval/{benchmark}/avg_at_{samples}"


def is_evaluation(name: str) -> bool:
    """Whether a metric is of a checkpoint of a finished run."""
    return _EVALUATION.fullmatch(name) is not None


def reward_metric(part: str, benchmark: str = "") -> str:
    """`reward/[<benchmark>/]<part>`: the mean of a part of the user's reward, in training or a validation."""
    return f"reward/{benchmark and benchmark + '/'}{part}"


def mismatch_metric(name: str, third: str = "", *, before_update: bool = False) -> str:
    """`mismatch/[before_update/][early/|middle/|late/]<name>`: of the step's updates or the state before them, and of
    all tokens or those in a third of their response.
    """
    return f"{MISMATCH}{BEFORE_UPDATE if before_update else ''}{third and third + '/'}{name}"


POSITION_BINS = 8  # parts of a response that metrics by position tell apart


def position_metric(quantity: str, part: int) -> str:
    """`exact/<quantity>_<part>`: the mean movement, or the sum of Delta's terms, in the `part`-th eighth (from 1)."""
    return f"exact/{quantity}_{part}"


def age_metric(age: int) -> str:
    """`train/staleness_share_<age>`: the share of a batch's tokens whose mu is older than pi by so many batches."""
    return f"train/staleness_share_{age}"


def is_known_metric(name: str) -> bool:
    """Whether a core may log `name`."""
    if match := _MISMATCH.fullmatch(name):
        return MISMATCH + match["name"] in METRIC_BY_NAME
    patterns = (_VALIDATION, _POSITION, _AGE, _ANSWER_RULE, _REWARD, _EVALUATION, _GPU)
    return name in METRIC_BY_NAME or any(pattern.fullmatch(name) for pattern in patterns)


# Tags of an MLflow run. A run that several sweeps share carries a sweep tag for each.
TAG_RUN_ID = "cppo.run_id"
TAG_RULE = "cppo.rule"
TAG_MODEL = "cppo.model"
TAG_CORE = "cppo.core"
TAG_SEED = "cppo.seed"
TAG_T_STOP = "cppo.t_stop"
TAG_STATUS = "cppo.status"
TAG_REASON = "cppo.reason"  # a line on why a run failed, collapsed or was interrupted
TAG_STEP = "cppo.step"  # the last recorded step of a run that was interrupted or failed
TAG_CODE_VERSION = "cppo.code_version"
TAG_RECORD = "cppo.record"  # the record in the run's spool by which the MLflow run is found again
TAG_FILES = "cppo.files"  # "complete" once all artifacts of a run that has ended are there
TAG_FOLDER = "cppo.folder"  # the run's folder, whose lock tells whether the run lives
TAG_LAYOUT = "cppo.layout"  # of the verl core: name and fingerprint of the layout
TAG_REPLACES = "cppo.replaces"  # the results that are to go once this run has a result, by their records
TAG_REPLACED = "cppo.replaced"  # those that went
TAG_SWEEP_PREFIX = "cppo.sweep."  # + sweep name; the value is the run's variant name in that sweep
TAG_FIGURE = "cppo.figure"  # the paper's tables and figures that it feeds: "Table 1, Figure 4"
TAG_SEARCH = "cppo.search"  # name of the study that a search's runs belong to
TAG_TRIAL = "cppo.trial"  # number of the trial
TAG_TRIAL_RUNS = "cppo.trial_runs"  # ids of a trial's training runs, a run for each seed
TAG_SWEEP_PARENT = "cppo.sweep_parent"  # name of the sweep that a run without training represents
TAG_HYPOTHESES = (
    "cppo.hypotheses"  # of a sweep: registrations, as JSON (the fields of `tracking.page.Registration`)
)
TAG_WARM_START = "cppo.warm_start"  # digest of the weights from which training began
TAG_SELF_TEST = "cppo.self_test"  # of the verl core: mu of some prompts against the trainer, at each start
TAG_SEED_FIXES_START = "cppo.seed_fixes_start"  # "true" if the record of its core says it; none before
TAG_REPORT = "cppo.report"  # the files of a report that such a run has
TAG_PARENT = "mlflow.parentRunId"  # of MLflow: a run of a sweep or search, and a trial, have a parent
TAG_COLOUR = "mlflow.runColor"  # of MLflow: of a run's curves in its page
OUR_TAGS = ("cppo.", "mlflow.")  # how the keys of all tags begin but those of users
TAG_NOTE = "mlflow.note.content"  # of MLflow: the description of a run or experiment, in Markdown

# Where, with what and by which code a run was trained. Those in LISTED name every attempt's, separated by spaces.
TAG_HOST = "cppo.env.host"
TAG_PYTHON = "cppo.env.python"
TAG_PLATFORM = "cppo.env.platform"
TAG_ROLLOUT = "cppo.env.rollout"  # the rollout engine, its version and runner
TAG_LOGITS = "cppo.env.logits"  # the code that takes the loss's values from the logits: kernels, or why not
TAG_PACKAGES = "cppo.env.packages"  # name==version of the main ones, with spaces between
TAG_OLD_PACKAGE_PREFIX = "cppo.env.package."  # + name: the value is its version; of runs until November 2026
TAG_CPU = "cppo.env.cpu"  # model of the machine's processors
TAG_CORES = "cppo.env.cores"  # hardware threads that the process may use
TAG_MEMORY = "cppo.env.memory_gib"  # of the machine
TAG_GPU = "cppo.env.gpu"  # models of the machine's GPUs
TAG_GPUS = "cppo.env.gpus"  # how many it has
TAG_VISIBLE_DEVICES = "cppo.env.visible_devices"  # CUDA_VISIBLE_DEVICES
TAG_DRIVER = "cppo.env.driver"
TAG_CUDA = "cppo.env.cuda"  # the newest CUDA that the driver knows
TAG_JOB = "cppo.env.slurm_job"
TAG_ARRAY_TASK = "cppo.env.slurm_array_task"  # as Slurm's commands write it: <array job>_<task>
TAG_JOB_NAME = "cppo.env.slurm_name"
TAG_PARTITION = "cppo.env.slurm_partition"
TAG_NODES = "cppo.env.slurm_nodes"  # Slurm's list of them
TAG_RESTARTS = "cppo.env.slurm_restarts"  # how often Slurm has put the job back into its queue
TAG_COMMIT = "cppo.env.commit"
TAG_DIRTY = "cppo.env.dirty"  # whether files differed from the commit: true or false
TAG_CHANGES = "cppo.env.changes"  # fingerprint of what differed
LISTED = frozenset({TAG_HOST, TAG_JOB, TAG_ARRAY_TASK, TAG_NODES, TAG_COMMIT, TAG_CHANGES})
# Those of MLflow, which its pages show as columns.
TAG_MLFLOW_COMMIT = "mlflow.source.git.commit"
TAG_MLFLOW_SOURCE = "mlflow.source.name"
TAG_MLFLOW_SOURCE_TYPE = "mlflow.source.type"
TAG_MLFLOW_USER = "mlflow.user"

# Tags that a core may give its run.
TAGS_OF_CORES = frozenset({TAG_WARM_START, TAG_SELF_TEST, TAG_ROLLOUT, TAG_LOGITS})

# Values of TAG_STATUS.
RUNNING = "running"  # MLflow: RUNNING
DONE = "done"
COLLAPSED = "collapsed"  # ended early because the policy broke down: a result, not a failure
FAILED = "failed"  # failed with an error; MLflow: FAILED
PARTIAL = "partial"  # interrupted before its last step: the next launch resumes it; MLflow: KILLED
STOPPED = "stopped"  # ended by `launch --stop-hopeless`, which then leaves it; no result; MLflow: KILLED
STATUSES = (RUNNING, DONE, COLLAPSED, FAILED, PARTIAL, STOPPED)
PRUNED = "pruned"  # of a trial only: the search gave it up early
FINISHED = frozenset({DONE, COLLAPSED})  # the run is a result: nothing is left to train

# What a run of a sweep may be that no tag says.
QUEUED = "queued"  # a living launcher has it on its list and has not started it
MISSING = "missing"  # nobody has started it
STATES = (DONE, COLLAPSED, RUNNING, QUEUED, FAILED, PARTIAL, STOPPED, MISSING)  # of a planned run
ALIVE = frozenset({RUNNING, QUEUED})  # it trains, or somebody is to start it


@dataclass(frozen=True)
class Outcome:
    """How training ended: `status` DONE or COLLAPSED, after step `step`; why, if it collapsed."""

    status: str
    step: int
    reason: str = ""


# A run has collapsed when its validation score has been below `share` times its best so far, and at least MARGIN below
# it, at `patience` validations in a row; or when a log-probability, gradient or weight is not finite. It then ends.
#
# PAPER: `collapse` is a run that diverged (Table 4), without a threshold. Share 0.4 separates its curves as its table
# does: CISPO on Qwen3-30B-A3B-Base falls below, and no other run. That curve ends at its first such point, so only
# patience 1 finds it. Our runs continue, and patience 2 tells a collapse from a single bad validation.

COLLAPSE_MARGIN = 0.05  # a policy that never learned cannot collapse, since its scores are noise around 0


def collapse_reason(scores: Sequence[float], share: float, patience: int) -> str:
    """Why a run with these validation scores (fractions, oldest first) has collapsed; empty if it has not."""
    best, below = 0.0, 0
    for score in scores:
        best = max(best, score)
        below = below + 1 if score < share * best and best - score >= COLLAPSE_MARGIN else 0
        if below >= patience:
            return (
                f"validation score {100 * score:.1f} % is below {share:g} x its best {100 * best:.1f} % "
                f"at {patience} validations in a row"
            )
    return ""


# Early signs of a collapse. At 0.4, the share of a collapse, many runs recover (docs/evidence/drift.md).
EARLY_WARNING = "early warning 1"
EARLY_WARNING_SHARE = 0.1  # of the best score
WARNED, WARNED_COLLAPSED = 48, 42  # runs of docs/evidence/early_warning.csv, and of these collapsed


def early_signs(last: float | None, best: float | None) -> str:
    """What speaks for a collapse of a run with these scores, and the rule that says so; empty if nothing does."""
    if last is None or best is None or not collapse_reason((best, last), EARLY_WARNING_SHARE, patience=1):
        return ""
    scores = f"score {100 * last:.1f} % is below {EARLY_WARNING_SHARE:g} x its best {100 * best:.1f} %"
    chance = f"{WARNED_COLLAPSED} of {WARNED} such runs of the exact core collapsed"
    return f"early signs of a collapse: {scores}; {chance} ({EARLY_WARNING})"


TRAINING, VALIDATION = "training", "validation"  # what a run uses a dataset for
CODE, LOCAL = "code", "local"  # where a dataset comes from: it is drawn by code, or is a file


@dataclass(frozen=True)
class Dataset:
    """Problems that a run reads. Two of the same `name` and `digest` (at most 36 characters) are the same problems."""

    name: str
    digest: str
    source: str  # the code's name, or the file's
    source_type: str  # CODE or LOCAL
    context: str  # TRAINING or VALIDATION
    profile: Mapping[str, int | str]  # what else is known, such as how many problems there are


# MLflow experiments: one per core, and the paper's curves, so that they never mix by accident.
PAPER = "paper"


def search_metric(objective: str) -> str:
    """`search/<objective>`: what a trial came to."""
    return f"search/{objective}"


def experiment_name(core: str) -> str:
    """The MLflow experiment that holds the runs of `core`."""
    return PAPER if core == PAPER else f"cppo-{core}"


def sweep_tag(sweep: str) -> str:
    """The tag key that marks a run as part of `sweep`."""
    return TAG_SWEEP_PREFIX + sweep
