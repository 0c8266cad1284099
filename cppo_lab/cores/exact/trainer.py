"""Training with exact evaluation: every step reports the surrogate's prediction and the true improvement.

Runs that share process, batch and schedule are trained together: sampling and exact evaluation take one pass over the
positions for all of them. A `Learner` is a run: its parameters, optimiser, random streams and updates on a rollout
batch. Each run gets the same numbers as alone.
"""

import copy
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.core_records import Ended, MetricSink, Resources, TogetherRun
from cppo_lab.cores.exact.process import (
    BRANCH,
    Array,
    PolicyPair,
    Process,
    compare,
    returns_by_start,
    sample,
    starting_parameters,
    state_probabilities,
    student,
)
from cppo_lab.cores.loop import (
    Metrics,
    ObjectiveResult,
    SteppedTrainer,
    train_alone,
    train_runs,
    validation_scores,
)
from cppo_lab.cores.rule_loss import (
    RuleLoss,
    measured_divergence,
    measured_drift,
    own_permutation,
    recorded_tokens,
)
from cppo_lab.errors import NotFinite
from cppo_lab.maths import bounds
from cppo_lab.maths.divergence import Recorded, exact
from cppo_lab.maths.masks import limits_of
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import DIVERGENCE, DRIFT, ENTROPY, PERMUTATION, rule_of
from cppo_lab.schema import Outcome
from cppo_lab.spec import AlongSpec, ExactRun, RuleSpec


@dataclass(frozen=True)
class GradedResponses:
    """A graded rollout batch; `keep` marks the responses whose group has a learning signal."""

    mu: Recorded  # of each token of each table entry: tokens, logp [K * S * V], top-k [K * S, K']
    places: Tensor  # [B, T] flat indices into a table [K, S, V]
    logp: Tensor  # [B, T] log mu
    rewards: Tensor  # [B]
    advantages: Tensor  # [B]
    keep: Tensor  # [B] bool
    permutation: Tensor | None  # [B, T] of each response's positions, for the rule that shuffles weights
    zero_variance_share: float


class Learner(SteppedTrainer):
    """Parameters and random generators of a run. Samples are not text: it keeps no answers and no weights."""

    GENERATORS = ("problems", "sampling", "shuffling", "engine")
    spec: ExactRun

    def __init__(self, spec: ExactRun) -> None:
        data, horizon = spec.data, spec.rollout.max_response_length
        self.process = Process(
            data.family, data.vocabulary, horizon, data.allowed_slips, spec.model.stretches
        )
        self.start, self.problems, self.sampling, self.shuffling, self.engine = (
            torch.Generator().manual_seed(spec.seed * 1000 + stream) for stream in range(5)
        )
        self.parameters = starting_parameters(self.process, spec.model, self.start).requires_grad_()
        super().__init__(
            spec,
            torch.device("cpu"),
            [self.parameters],
            lambda ids: ["fork" if token == BRANCH else str(token) for token in ids],
        )
        self.past: deque[Tensor] = deque()
        self.noise: Tensor | None = None  # [K, S, V] on the sampler's logits for this batch
        self.shuffles = self.loss.shuffles
        self.rule = spec.rule  # of the last updates that are measured
        # Those of the policy that the exact metrics compare with mu, [P]; None: not measured in this step.
        self.measured: Tensor | None = self.parameters

    def log_policy(self, temperature: float, parameters: Tensor | None = None) -> Tensor:
        """log pi [K, S, V] at `temperature`, differentiable in `parameters` [P] (None: the current ones)."""
        logits = self.process.logits(self.parameters if parameters is None else parameters)
        return (logits if temperature == 1 else logits / temperature).log_softmax(-1)

    @torch.no_grad()
    def log_rollout_policy(self) -> Tensor:
        """log mu [K, S, V] of the next rollout batch: stale, rounded and disturbed as the config says."""
        spec, process = self.spec, self.process
        self.past.append(self.parameters.detach().clone())
        stale = self.past[0]
        if len(self.past) > spec.rollout.staleness:
            self.past.popleft()
        if spec.model.mismatch:
            shape = process.stretches, process.states, process.vocabulary
            self.noise = spec.model.mismatch * student(shape, self.engine)
        return self.sampler(stale)

    @torch.no_grad()
    def sampler(self, parameters: Tensor) -> Tensor:
        """log-probabilities [K, S, V] with which the sampler of this batch uses `parameters` [P]."""
        if self.spec.rollout.precision == "bfloat16":
            parameters = parameters.bfloat16().double()
        logits = self.process.logits(parameters)
        if self.noise is not None:
            logits = logits + self.noise
        return (logits / self.spec.rollout.temperature).log_softmax(-1)

    def draw(self) -> tuple[Tensor, Tensor]:
        """The starting states [B] of a rollout batch, groups together, and the draws [B, T] that decide its tokens."""
        batch, process = self.spec.batch, self.process
        starts = torch.from_numpy(process.starts)
        chosen = torch.randint(len(starts), (batch.prompts,), generator=self.problems)
        rows = batch.prompts * batch.responses
        uniforms = torch.rand((rows, process.horizon), generator=self.sampling, dtype=torch.float64)
        return starts[chosen].repeat_interleave(batch.responses), uniforms

    def rollout(self, log_mu: Tensor, places: Tensor, rewards: Tensor) -> GradedResponses:
        """The graded batch of the tokens at `places` [B, T] with `rewards` [B].

        Raises NotFinite if mu has overflowed.
        """
        if bool(log_mu.isnan().any()):  # equal rewards would hide it, since nothing is then learned
            raise NotFinite("log-probabilities are not finite")
        batch, mu = self.spec.batch, self.recorded(log_mu)
        group = torch.arange(batch.prompts).repeat_interleave(batch.responses)
        advantages, keep, share = self.graded(rewards, group)
        permutation = None
        if self.shuffles:
            permutation = own_permutation(torch.ones_like(places, dtype=torch.bool), self.shuffling)
        logp = mu.logp.take(places)
        return GradedResponses(mu, places, logp, rewards, advantages, keep, permutation, share)

    def recorded(self, log_policy: Tensor) -> Recorded:
        """What a policy [K, S, V] records of each token of each table entry."""
        symbols = self.process.vocabulary
        rows = log_policy.reshape(-1, symbols)
        top = rows.topk(recorded_tokens(self.spec.divergence, symbols), -1)
        return Recorded(torch.arange(symbols).repeat(len(rows)), rows.flatten(), top.indices, top.values)

    def update(self, rollout: GradedResponses, watched: int | None = None) -> dict[str, float]:
        """The updates of a batch. `watched`: the training step, if it enters the diagnostics."""
        old = rollout.mu
        if self.spec.rollout.correction:
            old = self.recorded(self.log_policy(self.spec.rollout.temperature).detach())
        return self.updates(rollout.keep, lambda rows: self.objective(rollout, rows, old), watched)

    def objective(
        self, rollout: GradedResponses, rows: Tensor, old: Recorded | None = None
    ) -> ObjectiveResult:
        """Loss and statistics on the responses `rows`. `old`: of pi_old; None: it is mu."""
        places, rollout_logp = (part.index_select(0, rows) for part in (rollout.places, rollout.logp))
        old, symbols, given = old or rollout.mu, self.process.vocabulary, dict[str, Tensor]()
        old_logp = rollout_logp if old is rollout.mu else old.logp.take(places)
        origin = old if self.spec.divergence.origin else rollout.mu
        log_pi = self.log_policy(self.spec.rollout.temperature)
        logp = log_pi.flatten().gather(0, places.flatten()).view(places.shape)
        if not bool(logp.detach().sum().isfinite()):
            raise NotFinite("log-probabilities are not finite")
        if self.loss.centering:
            ids, topk_logp = (part[places // symbols] for part in (rollout.mu.topk_ids, rollout.mu.topk_logp))
            topk_pi_logp = log_pi.view(-1, symbols)[places // symbols].gather(-1, ids)
            given |= {"topk_ids": ids, "topk_logp": topk_logp, "topk_pi_logp": topk_pi_logp}
        if DRIFT in self.loss.needs:
            given["drift"] = self._at(measured_drift, log_pi.detach(), origin, places)
        if ENTROPY in self.loss.needs:
            entropy = torch.special.entr(rollout.mu.logp.exp()).view(-1, symbols).sum(-1)
            given["rollout_entropy"] = entropy[places // symbols]
        if self.loss.shuffles and rollout.permutation is not None:
            given["permutation"] = rollout.permutation[rows]
        tokens = Tokens(
            logp,
            old_logp,
            rollout.advantages[rows][:, None].expand_as(logp),
            torch.ones_like(places, dtype=torch.bool),
            self._at(measured_divergence, log_pi.detach(), origin, places),
            origin_logp=old_logp if origin is old else rollout_logp,
            **given,
        )
        return self.result(tokens, rollout_logp, places % symbols)

    def premise(self, rollout: GradedResponses, divergence: Tensor, largest: Tensor) -> dict[str, float]:
        """How much of the step is beyond the limits of the rule's mask, which Theorem 1 takes for granted wherever mu
        goes: a mask limits which sampled tokens push the policy, not how far it moves. {} for a rule whose delta is
        no limit of TV from mu.

        Args:
            rollout: the batch, whose responses are a sample of mu's visits.
            divergence: [K, S] TV of mu and the policy after the updates.
            largest: [T] the largest divergence that mu reaches at each position.
        """
        rule, valid = self.rule, torch.ones_like(rollout.places, dtype=torch.bool)
        record = rule_of(rule.name, rule.path)
        kind = self.spec.divergence
        tests_divergence = DIVERGENCE in record.needs and kind.measure == "tv" and not kind.origin
        if rule.delta is None or rule.path is not None or not tests_divergence:
            return {}
        constants = {**rule.arguments(self.process.horizon), **record.fixed}
        visited = divergence.take(rollout.places // self.process.vocabulary)
        # A batch has an order for the rule of the training, too.
        order = rollout.permutation if PERMUTATION in record.needs else None
        weights, rate, tests = limits_of(constants, visited, valid, order)
        beyond = {"visits": tests.token_fails, "positions": (weights * largest > rule.delta).any(0)}
        if bool(rate.isfinite().all()):
            beyond["prefixes"] = tests.prefix_fails
        return {f"exact/premise_{name}": float(fails.double().mean()) for name, fails in beyond.items()}

    def _at(self, measured: Callable[..., Tensor], log_pi: Tensor, mu: Recorded, places: Tensor) -> Tensor:
        """`measured_*` [B, T] at `places`, once for each table entry [K * S * V] that some response visited."""
        symbols = self.process.vocabulary
        count = log_pi.numel()
        visited = torch.zeros(count, dtype=torch.bool).index_fill_(0, places.flatten(), True)
        entries = visited.nonzero().flatten()
        states = entries // symbols
        ids, top, rows = (
            part.index_select(0, states) for part in (mu.topk_ids, mu.topk_logp, log_pi.view(-1, symbols))
        )
        recorded = Recorded(mu.tokens.take(entries), mu.logp.take(entries), ids, top)
        values = measured(self.spec.divergence, rows, log_pi.take(entries), recorded)
        return log_pi.new_zeros(count).index_copy_(0, entries, values).take(places)

    def policy_state(self) -> dict[str, Any]:
        return {"parameters": self.parameters.detach(), "past": list(self.past)}

    def load_policy(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.parameters.copy_(state["parameters"])
        self.past = deque(state["past"])


# (parameters [P], state of the optimiser)
Snapshot = tuple[Tensor, dict[str, Any]]


class UpdateAlong(Learner):
    """Trains by the rule and learning rate of `along`. From the state before each step, with its parameters, optimiser
    state and batch, the run's rule and learning rate update once; this update is brought to the movement of the
    training's own and is what the step is measured at.

    An update's movement is the mean over positions and mu's visits of the total variation between the policy after it
    and the policy that would have sampled without staleness: the parameters before it, with mu's rounding and noise.
    That is mu itself at staleness 0. From a stale mu, the start of the update is far away already, often further than
    its end, so that no length of another rule's update would give the same distance. With `match` update it is measured
    from the policy before it, without mu's rounding and noise, which may be larger than any update.
    """

    def __init__(self, spec: ExactRun, along: AlongSpec) -> None:
        super().__init__(spec)
        self.along, self.loss = along, RuleLoss(spec, along.rule)
        self.shuffles = self.shuffles or self.loss.shuffles
        self._set_learning_rate(along.learning_rate)

    def update(self, rollout: GradedResponses, watched: int | None = None) -> dict[str, float]:
        """The training's updates of a batch; the metrics of the measured update, which enters the diagnostics."""
        start, process = self._snapshot(), self.process
        super().update(rollout)
        trained, loss = self._snapshot(), self.loss
        log_mu = rollout.mu.logp.view(process.stretches, process.states, process.vocabulary)
        occupancy = torch.from_numpy(state_probabilities(process, log_mu.exp()[None].numpy())[:-1, 0])
        visits = torch.zeros(log_mu.shape[:2], dtype=log_mu.dtype)
        visits.index_add_(0, torch.from_numpy(process.stretch), occupancy)

        temperature = self.spec.rollout.temperature
        before = partial(self.log_policy, temperature) if self.along.match == "update" else self.sampler
        origin = before(start[0])

        def moved(parameters: Tensor) -> float:
            """The movement of the policy with `parameters` [P]."""
            log_pi = self.log_policy(temperature, parameters)
            return float((visits * exact(origin, log_pi)).sum()) / process.horizon

        target = moved(trained[0])

        def updated(rule: RuleSpec, watched: int | None = None) -> tuple[Tensor, dict[str, float]]:
            """How `rule` changes the parameters, and the metrics of its updates."""
            self._restore(start)
            self._set_learning_rate(self.spec.optim.learning_rate)
            self.loss = RuleLoss(self.spec, rule)
            metrics = super(UpdateAlong, self).update(rollout, watched)
            return self.parameters.detach() - start[0], metrics

        rule = self.spec.rule
        if self.along.match == "delta":
            rule = _nearest_threshold(rule, lambda other: moved(start[0] + updated(other)[0]) - target)
        self.rule = rule
        step, metrics = updated(rule, watched)
        length = equal_length(lambda scale: moved(start[0] + scale * step) - target)
        self.measured = None if length is None else start[0] + length * step
        self.loss = loss
        self._restore(trained)
        metrics["exact/matched"] = float(length is not None)
        if length is None:
            return metrics
        return metrics | {"exact/update_length": length, "exact/update_movement": target}

    def _set_learning_rate(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def _snapshot(self) -> Snapshot:
        return self.parameters.detach().clone(), copy.deepcopy(self.optimizer.state_dict())

    def _restore(self, snapshot: Snapshot) -> None:
        with torch.no_grad():
            self.parameters.copy_(snapshot[0])
        self.optimizer.load_state_dict(copy.deepcopy(snapshot[1]))  # which would share its tensors


def _nearest_threshold(rule: RuleSpec, beyond: Callable[[RuleSpec], float]) -> RuleSpec:
    """`rule` with the delta, among 2^-8 to 2^8 times its own, whose update is nearest to a movement, by bisection:
    `beyond` says by how much an update moves further. Masks change in jumps, so it is rarely met exactly.
    """
    assert rule.delta is not None
    tried: list[tuple[float, RuleSpec]] = []
    low, high = -8.0, 8.0
    for _ in range(14):
        middle = (low + high) / 2
        candidate = rule.model_copy(update={"delta": rule.delta * 2**middle})
        difference = beyond(candidate)
        tried.append((abs(difference), candidate))
        low, high = (middle, high) if difference < 0 else (low, middle)
    return min(tried, key=lambda pair: pair[0])[1]


def equal_length(beyond: Callable[[float], float]) -> float | None:
    """The scale of an update at which `beyond` (how much further it moves than wanted) is 0, near 1; None if none is
    found: an update of length 0, or whose start is further away than wanted.
    """
    if beyond(1.0) == 0:
        return 1.0
    low = next((scale for scale in (0.0, 1.0, 0.5, 2.0, 0.25, 4.0) if beyond(scale) <= 0), None)
    if low is None:
        return None
    longer = (max(low, 2.0**-8) * 2**n for n in range(24))
    high = next((scale for scale in longer if beyond(scale) > 0), None)
    if high is None:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) <= 0 else (low, middle)
    return low


# Of joint training. Writing a checkpoint at each validation would take longer than a run's share of training.
CHECKPOINT_SECONDS = 10.0


def train(spec: ExactRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` on the CPU to its last step or to its collapse, see `cores.loop.train_runs`."""
    return train_alone(TogetherRun(spec, sink, resources), partial(train_together, checkpoint_seconds=0.0))


def train_together(
    runs: Sequence[TogetherRun[ExactRun]], ended: Ended, checkpoint_seconds: float = CHECKPOINT_SECONDS
) -> None:
    """Train runs that differ only in the seed, each with the same numbers as alone, see `core_records.Together`."""
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

    with TemporaryDirectory() as place:
        runs = []
        for i, spec in enumerate(specs):
            (folder := Path(place, str(i))).mkdir()
            runs.append(TogetherRun(spec, _Rows(rows[i]), Resources(folder, folder)))
        train_together(runs, ended)
    return list(zip(reasons, rows, strict=True))


class _Rows:
    """A sink that keeps the rows alone."""

    def __init__(self, rows: list[tuple[int, Metrics]]) -> None:
        self.rows = rows

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((step, dict(metrics)))

    def _nothing(self, *_: Any) -> None:
        """Nothing else is kept."""

    begin = tag = artifact = file = _nothing


def learner_of(spec: ExactRun) -> Learner:
    """What trains `spec`, or measures its updates along another training."""
    return UpdateAlong(spec, spec.along) if spec.along else Learner(spec)


def step_together(learners: Sequence[Learner], step: int) -> list[Metrics | Exception]:
    """Training step `step` of runs that share process, batch and schedule: metrics, or what ended the run: NotFinite
    before an update that would destroy its parameters, or an error.
    """
    started = time.perf_counter()
    spec, process = learners[0].spec, learners[0].process
    log_mu = torch.stack([learner.log_rollout_policy() for learner in learners])
    before = torch.stack([learner.log_policy(spec.rollout.temperature).detach() for learner in learners])
    mu, draws = log_mu.exp().numpy(), [learner.draw() for learner in learners]
    places, rewards = sample(process, mu, *(torch.stack(part).numpy() for part in zip(*draws, strict=True)))
    sampled = time.perf_counter()
    watched = step if step % spec.validation.every == 0 else None
    results: list[Metrics | Exception] = []
    rollouts: dict[int, GradedResponses] = {}
    for i, learner in enumerate(learners):
        try:
            rollout = learner.rollout(log_mu[i], torch.from_numpy(places[i]), torch.from_numpy(rewards[i]))
            metrics = learner.update(rollout, watched)
        except Exception as error:  # noqa: BLE001 - the other runs continue
            results.append(error)
            continue
        rollouts[i] = rollout
        entropy = -(log_mu[i].exp() * log_mu[i]).sum(-1).flatten()
        results.append(
            metrics
            | {
                "train/reward": float(rollout.rewards.mean()),
                "train/response_length": float(process.horizon),
                "train/zero_variance_group_share": rollout.zero_variance_share,
                "train/entropy": float(entropy[rollout.places // process.vocabulary].mean()),
            }
        )
    updated = time.perf_counter()
    after = torch.stack(
        [learner.log_policy(spec.rollout.temperature, learner.measured).detach() for learner in learners]
    )
    moved, apart = (exact(log_mu, policy).numpy() for policy in (after, before))
    comparison = compare(process, mu, after.exp().numpy(), moved)
    stale = spec.rollout.staleness > 0
    start = compare(process, mu, before.exp().numpy(), apart) if stale else None
    ended = time.perf_counter()
    runs, sampled_tokens = len(learners), float(places.size)
    trained = sum(float(rollout.keep.sum()) for rollout in rollouts.values()) * process.horizon
    seconds = {  # a run's share, since the costs of runs are added up
        "perf/step_seconds": (updated - started) / runs,
        "perf/rollout_seconds": (sampled - started) / runs,
        "perf/update_seconds": (updated - sampled) / runs,
        "perf/sampled_tokens_per_second": sampled_tokens / (sampled - started),
        "perf/trained_tokens_per_second": trained / (updated - sampled),
        "perf/evaluation_seconds": (ended - updated) / runs,
    }
    for i, (learner, result) in enumerate(zip(learners, results, strict=True)):
        if isinstance(result, Exception):
            continue
        if learner.measured is not None:
            result |= exact_metrics(comparison, apart, i)
            largest = torch.from_numpy(comparison.largest[i])
            result |= learner.premise(rollouts[i], torch.from_numpy(moved[i]), largest)
            if start is not None:
                result["exact/error_before"] = float(start.error[i].sum())
        result |= seconds
    return results


def exact_metrics(comparison: PolicyPair, before: Array, row: int) -> Metrics:
    """The metrics of run `row`; `before` [R, K, S] is the divergence of mu from the policy that the step began with."""
    mean, largest = comparison.movement[row].tolist(), comparison.largest[row].tolist()
    error = comparison.error[row]
    residual = float(error.sum())
    bound = bounds.residual_bound(mean, largest)
    metrics = {
        "exact/rollout_return": float(comparison.rollout_return[row]),
        "exact/return": float(comparison.returns[row]),
        "exact/surrogate": float(comparison.surrogate[row].sum()),
        "exact/error": residual,
        "exact/movement": float(comparison.movement[row].mean()),
        "exact/movement_before": float((comparison.visits[row] * before[row]).sum() / len(mean)),
        "exact/bound": bound,
        "exact/bound_slack": bound - abs(residual),
        "exact/product_bound": bounds.product_residual_bound(mean, largest),
        "exact/theorem_bound": bounds.measured_constant(mean, largest),
    }
    eighths = np.arange(len(mean)) * schema.POSITION_BINS // len(mean) + 1
    for number in range(1, schema.POSITION_BINS + 1):
        if (part := eighths == number).any():
            metrics[schema.position_metric("movement", number)] = float(comparison.movement[row, part].mean())
            metrics[schema.position_metric("error", number)] = float(error[part].sum())
    return metrics


def validate_together(learners: Sequence[Learner]) -> list[Metrics]:
    """The expected score of each run's policy on every benchmark, and their unweighted mean: no sampling."""
    spec, process = learners[0].spec, learners[0].process
    policies = [learner.log_policy(spec.validation.temperature).detach() for learner in learners]
    count = len(spec.data.benchmarks)
    return [
        validation_scores(spec, [float(returns[i::count].mean()) for i in range(count)])
        for returns in returns_by_start(process, torch.stack(policies).exp().numpy())
    ]
