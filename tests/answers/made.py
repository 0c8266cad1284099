"""Outcomes, samples and tokens for tests, every number from a seeded generator, and a run that keeps them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cppo_lab.answers.outcomes import Outcomes, no_outcomes, problem_ids
from cppo_lab.answers.records import Recording, StepAnswers
from cppo_lab.answers.texts import Sample
from cppo_lab.answers.tokens import RecordedTokens, RuleUsed
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import AnswersSpec

Record = TypeVar("Record")


def outcomes(
    problems: int = 6,
    validations: int = 3,
    samples: int = 16,
    seed: int = 0,
    benchmarks: tuple[str, ...] = ("aime24", "aime25"),
) -> Outcomes:
    """Benchmarks of equal size, validated at steps 0, 10, 20, ..."""
    generator, size = np.random.default_rng(seed), problems // len(benchmarks)
    benchmark_of = [number // size for number in range(problems)]
    names = [benchmarks[place] for place in benchmark_of]
    ids = problem_ids(names, [f"problem {number}" for number in range(problems)])
    made = no_outcomes(samples, benchmarks, ids, benchmark_of)
    difficulty = generator.random(problems)
    for number in range(validations):
        right = generator.binomial(samples, difficulty)
        made = made.append(
            10 * number, right, generator.binomial(samples - right, 0.3), generator.gamma(4, 2000, problems)
        )
    return made


def averages(outcomes: Outcomes) -> NDArray[np.float64]:
    """Avg@k [V, number of benchmarks], the share of right answers."""
    of = np.stack([outcomes.benchmark_of == i for i in range(len(outcomes.benchmarks))], axis=1)
    shares: NDArray[np.float64] = outcomes.right.astype(np.float64) @ of / (of.sum(axis=0) * outcomes.samples)
    return shares


def sample(**change: object) -> Sample:
    """A validation sample."""
    values = {
        "kind": "validation",
        "step": 10,
        "benchmark": "aime24",
        "problem": "aime24-1",
        "draw": 0,
        "prompt": "1 + 1 =",
        "response": "Answer: 2",
        "truth": "2",
        "answer": "2",
        "right": True,
        "length": 4,
        "cut_off": False,
        "stop": "end",
    }
    return Sample(**(values | change))  # type: ignore[arg-type]


def tokens(
    lengths: tuple[int, ...] = (5, 1, 8),
    seed: int = 0,
    rule: str = "cppo",
    step: int = 10,
    spread: float = 0.4,
) -> RecordedTokens:
    """Responses whose log-ratios have the standard deviation `spread`; D_t is the binary TV."""
    generator = np.random.default_rng(seed)
    count, responses = sum(lengths), len(lengths)
    logp = single(-generator.exponential(0.7, count))
    rollout_logp = single(np.minimum(logp + generator.normal(0, spread, count), 0))
    token = generator.integers(0, 9, count).astype(np.int32)
    vocabulary = np.unique(token)
    constants = {"delta": 0.1, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "adaptive"}
    return RecordedTokens(
        step=step,
        rule=RuleUsed(rule, None, constants, "binary", "tv"),
        tests=("threshold", "budget"),
        ends=np.cumsum(lengths),
        group=np.zeros(responses, np.int64),
        draw=np.arange(responses),
        advantage=single(generator.normal(0, 1, responses)),
        reward=single(generator.integers(0, 2, responses)),
        token=token,
        rollout_logp=rollout_logp,
        logp=logp,
        divergence=np.abs(np.exp(logp) - np.exp(rollout_logp)),
        keep=np.ones(count, np.float32),
        reason=np.zeros(count, np.uint8),
        vocabulary=vocabulary,
        pieces=tuple(f" {number}" for number in vocabulary),
    )


def single(values: NDArray[np.generic]) -> NDArray[np.float32]:
    return values.astype(np.float32)


def forged(record: Record, **change: Any) -> Record:
    """With values that its class refuses; a list becomes an array."""
    for name, value in change.items():
        object.__setattr__(record, name, np.array(value) if isinstance(value, list) else value)
    return record


def record(recorder: Recorder, samples_at: Callable[[int], list[Sample]], *steps: int) -> None:
    """Keeps outcomes and these samples at steps 0, 10, ..., and from the second on tokens."""
    kept = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50.0)
    recording = Recording(kept, recorder.folder, len(steps), recorder.file)
    recording.begin(None)
    whole = outcomes(validations=len(steps))
    for place, step in enumerate(steps):
        columns = {
            name: getattr(whole, name)[place : place + 1] for name in ("steps", "right", "cut_off", "length")
        }
        of_step = StepAnswers(
            replace(whole, **columns), samples_at(step), tokens(step=step) if step else None
        )
        recording.add(of_step)
        recorder.log(step, {"train/reward": step / 100})
