"""Training with exact evaluation: every step reports the surrogate's prediction and the true improvement.

Runs that share process, batch and schedule are trained together: sampling and exact evaluation take one pass over the
positions for all of them. Each run has separate random streams and gets the same numbers as alone.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.cores.base import Ended, MetricSink, Resources, TogetherRun
from cppo_lab.cores.checkpoint import same_form
from cppo_lab.cores.collapse import collapse_reason
from cppo_lab.cores.diagnostics import Diagnostics
from cppo_lab.cores.exact.learner import GradedResponses, Learner
from cppo_lab.cores.exact.process import Array, PolicyPair, compare, returns_by_start, sample
from cppo_lab.cores.loop import Course, run
from cppo_lab.errors import NotFinite
from cppo_lab.maths import bounds
from cppo_lab.maths.divergence import exact
from cppo_lab.schema import Outcome
from cppo_lab.signals import Interrupted, find_interruption
from cppo_lab.spec import ExactRun, canonical

Metrics = dict[str, float]


class ExactTrainer:
    """One run."""

    def __init__(self, spec: ExactRun) -> None:
        self.learner = Learner(spec)
        self.steps = 0
        self.device = torch.device("cpu")

    @property
    def diagnostics(self) -> Diagnostics:
        return self.learner.diagnostics

    def step(self) -> Metrics:
        """One training step: rollout, updates, exact evaluation. Returns its metrics.

        Raises NotFinite before an update that would destroy the parameters.
        """
        (metrics,) = step_together([self.learner], self.steps + 1)
        if isinstance(metrics, Exception):
            raise metrics
        self.steps += 1
        return metrics

    def validate(self) -> Metrics:
        """The expected score on every benchmark, and their mean."""
        return validate_together([self.learner])[0]

    def answers(self) -> None:
        """None: samples are not text, and returns are exact."""

    def weights(self) -> dict[str, Tensor]:
        """Empty: the models of this core are not exported."""
        return {}

    def state(self) -> dict[str, Any]:
        """The state that determines the rest of this run."""
        return {"steps": self.steps, **self.learner.state()}

    @property
    def tags(self) -> dict[str, str]:
        """Empty: there is no warm start."""
        return {}

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Continue from `state`, which was taken after `step`.

        Raises ValueError if it is not the state of such a trainer; then nothing has changed.
        """
        if not _fits(state, self) or state["steps"] != step:
            raise ValueError("it contains another policy, or another run's state")
        self.steps = state["steps"]
        self.learner.load_state(state)


def _fits(state: object, trainer: ExactTrainer) -> bool:
    """Whether `state` has the structure of `trainer`'s state."""
    form = trainer.state()
    if not isinstance(state, dict) or state.keys() != form.keys():
        return False
    past, watched, optimizer = state["past"], state["diagnostics"], state["optimizer"]
    plain = form.keys() - {"past", "diagnostics", "optimizer"}
    if not all(same_form(state[name], form[name]) for name in plain) or not isinstance(past, list):
        return False
    longest = trainer.learner.spec.rollout.staleness
    if len(past) > longest or not all(same_form(parameters, form["parameters"]) for parameters in past):
        return False
    if not isinstance(watched, dict) or not isinstance(watched.get("window"), dict | None):
        return False
    if not same_form({**watched, "window": None}, {**form["diagnostics"], "window": None}):
        return False
    before = isinstance(optimizer, dict) and optimizer.get("state") == {}
    moments = {
        "step": torch.tensor(0.0),
        "exp_avg": form["parameters"],
        "exp_avg_sq": form["parameters"],
    }
    return same_form(optimizer, {**form["optimizer"], "state": {} if before else {0: moments}})


def histories_together(specs: Sequence[ExactRun]) -> list[tuple[str, list[tuple[int, Metrics]]]]:
    """Train runs that differ only in the seed. Returns for each why it ended early ("" if it did not), and its rows of
    (step, metrics), where step 0 is the validation before training.

    For studies without folders; launchers use `train_together`. Raises ValueError for runs that differ otherwise.
    """
    require_alike(specs)
    spec = specs[0]
    score = schema.validation_metric(schema.MEAN, spec.validation.samples)
    learners = [Learner(run_spec) for run_spec in specs]
    histories = [[(0, metrics)] for metrics in validate_together(learners)]
    reasons = ["" for _ in specs]
    for step in range(1, spec.training.t_stop + 1):
        alive = [i for i, reason in enumerate(reasons) if not reason]
        if not alive:
            break
        results = step_together([learners[i] for i in alive], step)
        validated = step % spec.validation.every == 0
        scores = validate_together([learners[i] for i in alive]) if validated else [{} for _ in alive]
        for i, metrics, validation in zip(alive, results, scores, strict=True):
            if isinstance(metrics, NotFinite):
                reasons[i] = f"{metrics} at step {step}"
                continue
            if isinstance(metrics, Exception):
                raise metrics
            histories[i].append((step, metrics | validation))
            if validated:
                curve = [row[score] for _, row in histories[i] if score in row]
                reasons[i] = collapse_reason(
                    curve, spec.training.collapse_share, spec.training.collapse_patience
                )
    return list(zip(reasons, histories, strict=True))


def require_alike(specs: Sequence[ExactRun]) -> None:
    """Raises ValueError for runs that cannot be trained together."""
    if len({canonical(spec.model_copy(update={"seed": 0})) for spec in specs}) != 1:
        raise ValueError("runs that are trained together must differ only in the seed")


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
    for i, learner in enumerate(learners):
        tokens, places, rewards = (
            torch.from_numpy(part[i]) for part in (responses.tokens, responses.places, responses.rewards)
        )
        try:
            rollout, share = learner.rollout(log_mu[i], tokens, places, rewards)
            metrics = learner.update(rollout, watched)
        except Exception as error:  # noqa: BLE001 - the other runs continue
            results.append(error)
            continue
        results.append(metrics | _rollout_metrics(log_mu[i], rollout, rewards, share))
    updated = time.perf_counter()
    after = [learner.log_policy(spec.rollout.temperature).detach() for learner in learners]
    pi = _stacked([policy.exp() for policy in after])
    moved = _stacked([exact(a, b) for a, b in zip(log_mu, after, strict=True)])
    apart = _stacked([exact(a, b) for a, b in zip(log_mu, before, strict=True)])
    comparison = compare(process, mu, pi, moved)
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
    return [
        result if isinstance(result, Exception) else result | exact_metrics(comparison, apart, i) | seconds
        for i, result in enumerate(results)
    ]


def _rollout_metrics(log_mu: Tensor, rollout: GradedResponses, rewards: Tensor, share: float) -> Metrics:
    entropy = -(log_mu.exp() * log_mu).sum(-1).flatten()
    return {
        "train/reward": float(rewards.mean()),
        "train/response_length": float(rollout.tokens.shape[1]),
        "train/zero_variance_group_share": share,
        "train/entropy": float(entropy[rollout.places // log_mu.shape[-1]].mean()),
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


# Runs of the exact core: a single run, or several that differ only in the seed.


# Of joint training. Writing a checkpoint at each validation would take longer than a run's share of training.
CHECKPOINT_SECONDS = 10.0


def train(spec: ExactRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` on the CPU to its last step or to its collapse, see `cores.loop.run`."""
    torch.set_num_threads(resources.threads)
    return run(ExactTrainer(spec), spec, sink, resources)


@dataclass
class _Member:
    """One of the runs, with its index in the given order."""

    place: int
    trainer: ExactTrainer
    course: Course


def train_together(runs: Sequence[TogetherRun[ExactRun]], ended: Ended) -> None:
    """Train runs that differ only in the seed, each with the same numbers as alone, see `cores.base.Together`.

    Runs that resume from checkpoints of different steps wait for the run that is furthest behind.
    Raises ValueError for runs that differ otherwise.
    """
    require_alike([joined.spec for joined in runs])
    torch.set_num_threads(max(joined.resources.threads for joined in runs))
    group = _Group(ended)
    for place, joined in enumerate(runs):
        group.attempt(place, partial(_enter, group, place, joined))
    new = [member for member in group.members if not member.course.history]
    scores = validate_together([member.trainer.learner for member in new]) if new else []
    first = {member.place: score for member, score in zip(new, scores, strict=True)}
    for member in list(group.members):
        group.of(member, partial(member.course.begin, partial(dict, first.get(member.place, {}))))
    while group.members:
        _advance(group)


class _Group:
    """The runs that have not ended. An exception of a run ends only that run."""

    def __init__(self, ended: Ended) -> None:
        self.members: list[_Member] = []
        self._ended = ended

    def attempt(self, place: int, action: Callable[[], None]) -> bool:
        """Call `action` for the run at `place`; False if it ended by an error or was cancelled."""
        try:
            action()
        except Interrupted as error:
            if error.number is not None:  # a signal ends all of them
                raise
            self._end(place, error)
        except Exception as error:  # noqa: BLE001 - the others continue; the caller records it
            if (asked := find_interruption(error)) is not None:  # a signal interrupted `torch.save`
                raise asked from None
            self._end(place, error)
        else:
            return True
        return False

    def of(self, member: _Member, action: Callable[[], None]) -> None:
        """The same for a run that has begun; ends it if it is over."""
        if self.attempt(member.place, action) and member.course.over:
            self.attempt(member.place, lambda: self._end(member.place, member.course.end()))

    def _end(self, place: int, how: Outcome | BaseException) -> None:
        self.members = [member for member in self.members if member.place != place]
        self._ended(place, how)


def _enter(group: _Group, place: int, joined: TogetherRun[ExactRun]) -> None:
    trainer = ExactTrainer(joined.spec)
    course = Course(trainer, joined.spec, joined.sink, joined.resources, CHECKPOINT_SECONDS)
    group.members.append(_Member(place, trainer, course))


def _advance(group: _Group) -> None:
    """One training step of those that are furthest behind."""
    step = min(member.trainer.steps for member in group.members) + 1
    behind = [member for member in group.members if member.trainer.steps == step - 1]
    results = step_together([member.trainer.learner for member in behind], step)
    taken: list[tuple[_Member, Metrics]] = []
    for member, metrics in zip(behind, results, strict=True):
        if isinstance(metrics, NotFinite):
            group.of(member, partial(member.course.broke, metrics))
        elif isinstance(metrics, Exception):
            group.attempt(member.place, partial(_raise, metrics))
        else:
            member.trainer.steps = step
            taken.append((member, metrics))
    validated = bool(taken) and step % taken[0][0].course.spec.validation.every == 0
    learners = [member.trainer.learner for member, _ in taken]
    scores = validate_together(learners) if validated else [{} for _ in taken]
    for (member, metrics), score in zip(taken, scores, strict=True):
        group.of(member, partial(member.course.add, metrics, partial(dict, score)))


def _raise(error: Exception) -> None:
    raise error
