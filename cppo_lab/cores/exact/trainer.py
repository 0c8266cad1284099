"""Training with exact evaluation: every step reports the surrogate's prediction and the true improvement.

Runs that share process, batch and schedule are trained together: sampling and exact evaluation take one pass over the
positions for all of them. Each run has separate random streams and gets the same numbers as alone.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.cores.base import Ended, MetricSink, Resources, TogetherRun
from cppo_lab.cores.exact.learner import GradedResponses, Learner, UpdateAlong
from cppo_lab.cores.exact.process import Array, PolicyPair, compare, returns_by_start, sample
from cppo_lab.cores.loop import Metrics, train_alone, train_runs
from cppo_lab.maths import bounds
from cppo_lab.maths.divergence import exact
from cppo_lab.schema import Outcome
from cppo_lab.spec import ExactRun

# Of joint training. Writing a checkpoint at each validation would take longer than a run's share of training.
CHECKPOINT_SECONDS = 10.0


def train(spec: ExactRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` on the CPU to its last step or to its collapse, see `cores.loop.train_runs`."""
    return train_alone(TogetherRun(spec, sink, resources), partial(_train, checkpoint_seconds=0.0))


def train_together(runs: Sequence[TogetherRun[ExactRun]], ended: Ended) -> None:
    """Train runs that differ only in the seed, each with the same numbers as alone, see `cores.base.Together`."""
    _train(runs, ended, CHECKPOINT_SECONDS)


def _train(runs: Sequence[TogetherRun[ExactRun]], ended: Ended, checkpoint_seconds: float) -> None:
    train_runs(
        runs, ended, lambda run: learner_of(run.spec), step_together, validate_together, checkpoint_seconds
    )


def histories_together(specs: Sequence[ExactRun]) -> list[tuple[str, list[tuple[int, Metrics]]]]:
    """Train runs that differ only in the seed. Returns for each why it ended early ("" if it did not), and its rows of
    (step, metrics), where step 0 is the validation before training.

    For studies without folders; launchers use `train_together`. Raises ValueError for runs that differ otherwise.
    """
    rows: list[list[tuple[int, Metrics]]] = [[] for _ in specs]
    reasons = ["" for _ in specs]

    def ended(place: int, how: Outcome | BaseException) -> None:
        if isinstance(how, BaseException):
            raise how
        reasons[place] = how.reason

    with ExitStack() as stack:
        folders = [Path(stack.enter_context(TemporaryDirectory())) for _ in specs]
        runs = [
            TogetherRun(spec, _Rows(metrics), Resources(folder, folder))
            for spec, metrics, folder in zip(specs, rows, folders, strict=True)
        ]
        train_together(runs, ended)
    return list(zip(reasons, rows, strict=True))


class _Rows:
    """A sink that keeps the rows alone."""

    def __init__(self, rows: list[tuple[int, Metrics]]) -> None:
        self.rows = rows

    def begin(self, step: int | None) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((step, dict(metrics)))

    def tag(self, name: str, value: str) -> None: ...

    def artifact(self, name: str, values: Mapping[str, Any]) -> None: ...

    def file(self, name: str, content: bytes) -> None: ...


def learner_of(spec: ExactRun) -> Learner:
    """What trains `spec`, or measures its updates along another training."""
    return UpdateAlong(spec, spec.along) if spec.along else Learner(spec)


def step_together(learners: Sequence[Learner], step: int) -> list[Metrics | Exception]:
    """Training step `step` of runs that share process, batch and schedule: metrics, or what ended the run: NotFinite
    before an update that would destroy its parameters, or an error.
    """
    started = time.perf_counter()
    spec, process = learners[0].spec, learners[0].process
    log_mu = [learner.log_rollout_policy() for learner in learners]
    before = [learner.log_policy(spec.rollout.temperature).detach() for learner in learners]
    mu = _stacked([policy.exp() for policy in log_mu])
    draws = [learner.draw() for learner in learners]
    responses = sample(process, mu, *(_stacked(part) for part in zip(*draws, strict=True)))
    sampled = time.perf_counter()
    watched = step if step % spec.validation.every == 0 else None
    results: list[Metrics | Exception] = []
    rollouts: dict[int, GradedResponses] = {}
    for i, learner in enumerate(learners):
        tokens, places, rewards = (
            torch.from_numpy(part[i]) for part in (responses.tokens, responses.places, responses.rewards)
        )
        try:
            rollouts[i], share = learner.rollout(log_mu[i], tokens, places, rewards)
            metrics = learner.update(rollouts[i], watched)
        except Exception as error:  # noqa: BLE001 - the other runs continue
            results.append(error)
            continue
        results.append(metrics | _rollout_metrics(log_mu[i], rollouts[i], rewards, share))
    updated = time.perf_counter()
    after = [learner.log_policy(spec.rollout.temperature, learner.measured).detach() for learner in learners]
    pi = _stacked([policy.exp() for policy in after])
    moved = _stacked([exact(a, b) for a, b in zip(log_mu, after, strict=True)])
    apart = _stacked([exact(a, b) for a, b in zip(log_mu, before, strict=True)])
    comparison = compare(process, mu, pi, moved)
    stale = spec.rollout.staleness > 0
    start = compare(process, mu, _stacked([policy.exp() for policy in before]), apart) if stale else None
    ended = time.perf_counter()
    tokens_each = float(responses.tokens[0].size)
    runs = len(learners)
    seconds = {  # a run's share, since the costs of runs are added up
        "perf/step_seconds": (updated - started) / runs,
        "perf/rollout_seconds": (sampled - started) / runs,
        "perf/update_seconds": (updated - sampled) / runs,
        "perf/sampled_tokens_per_second": tokens_each * runs / (sampled - started),
        "perf/trained_tokens_per_second": tokens_each * runs / (updated - sampled),
        "perf/evaluation_seconds": (ended - updated) / runs,
    }
    for i, (learner, result) in enumerate(zip(learners, results, strict=True)):
        if isinstance(result, Exception):
            continue
        if learner.measured is not None:
            result |= exact_metrics(comparison, apart, i)
            tables = torch.from_numpy(moved[i]), torch.from_numpy(comparison.largest[i])
            result |= learner.premise(rollouts[i], *tables)
            if start is not None:
                result["exact/error_before"] = float(start.error[i].sum())
        result |= seconds
    return results


def _rollout_metrics(log_mu: Tensor, rollout: GradedResponses, rewards: Tensor, share: float) -> Metrics:
    entropy = -(log_mu.exp() * log_mu).sum(-1).flatten()
    return {
        "train/reward": float(rewards.mean()),
        "train/response_length": float(rollout.tokens.shape[1]),
        "train/zero_variance_group_share": share,
        "train/entropy": float(entropy[rollout.states].mean()),
    }


def exact_metrics(comparison: PolicyPair, before: Array, row: int) -> Metrics:
    """The metrics of run `row`; `before` [R, K, S] is the divergence of mu from the policy that the step began with."""
    mean, largest = comparison.movement[row].tolist(), comparison.largest[row].tolist()
    surrogate, error = comparison.surrogate[row], comparison.error[row]
    residual = float(error.sum())
    bound = bounds.residual_bound(mean, largest)
    metrics = {
        "exact/rollout_return": float(comparison.rollout_return[row]),
        "exact/return": float(comparison.returns[row]),
        "exact/surrogate": float(surrogate.sum()),
        "exact/error": residual,
        "exact/movement": float(comparison.movement[row].mean()),
        "exact/movement_before": float((comparison.visits[row] * before[row]).sum() / len(mean)),
        "exact/bound": bound,
        "exact/bound_slack": bound - abs(residual),
        "exact/product_bound": bounds.product_residual_bound(mean, largest),
        "exact/theorem_bound": bounds.measured_constant(mean, largest),
    }
    for number, part in enumerate(np.array_split(np.arange(len(mean)), schema.POSITION_BINS), 1):
        if len(part):
            metrics[schema.position_metric("movement", number)] = float(comparison.movement[row, part].mean())
            metrics[schema.position_metric("error", number)] = float(error[part].sum())
    return metrics


def validate_together(learners: Sequence[Learner]) -> list[Metrics]:
    """The expected score of each run's policy on every benchmark, and their unweighted mean: no sampling."""
    spec, process = learners[0].spec, learners[0].process
    policy = _stacked(
        [learner.log_policy(spec.validation.temperature).detach().exp() for learner in learners]
    )
    results = []
    names = spec.data.benchmarks
    for returns in returns_by_start(process, policy):
        means = [float(returns[i :: len(names)].mean()) for i in range(len(names))]
        scores = {
            schema.validation_metric(name, spec.validation.samples): mean
            for name, mean in zip(names, means, strict=True)
        }
        results.append(
            scores | {schema.validation_metric(schema.MEAN, spec.validation.samples): sum(means) / len(means)}
        )
    return results


def _stacked(tensors: Sequence[Tensor]) -> Any:
    """[R, ...] stacked, as a NumPy array."""
    return torch.stack(list(tensors)).numpy()
