"""Outcomes, texts and tokens for the runs of `made_pair`, hostile texts among them, put into the store as artifacts."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from mlflow import MlflowClient

from cppo_lab.answers import outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES, Outcomes, no_outcomes, problem_ids
from cppo_lab.answers.texts import TRAINING, Texts, texts_name
from cppo_lab.answers.tokens import RecordedTokens, RuleUsed, tokens_name
from tests.answers import made
from tests.reports.made_pair import BENCHMARKS, HEIGHT, STEPS, T_STOP

PROBLEMS, SAMPLES = 30, 16
BREAK_OUT = '</script><script>document.title="broken"</script><img src=x onerror="document.title=1">'
HOSTILE = f"{BREAK_OUT}\u202etxet desrever\u202c \x00\x1b[31m \ud800 {chr(0x200B)} & &lt; <!-- "
LONG_LINE = "never ends " * 95_000  # a megabyte without a line end
TOKENS = 16_384
BUDGET = {"delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "fixed"}
RULES = {
    name: RuleUsed(name, None, {"delta": 0.15} | more, "binary", "tv")
    for name, more in (("dppo", {}), ("cppo", BUDGET))
}
NAMES = [name for name in BENCHMARKS for _ in range(PROBLEMS // 3)]
IDS = problem_ids(NAMES, [f"problem {number}" for number in range(PROBLEMS)])


def made_outcomes(variant: str, seed: int) -> Outcomes:
    """The last problem is solved by CPPO alone, and the one before it by nobody."""
    rng = np.random.default_rng([seed, len(variant), ord(variant[0])])
    result = no_outcomes(SAMPLES, BENCHMARKS, IDS, [BENCHMARKS.index(name) for name in NAMES])
    difficulty = np.linspace(2, -6, PROBLEMS)
    for step in STEPS:
        chance = 1 / (1 + np.exp(-(difficulty + 10 * HEIGHT[variant] * step / T_STOP)))
        right = rng.binomial(SAMPLES, chance)
        right[-2:] = 0, (12 if variant == "cppo" and step == T_STOP else 0)
        result = result.append(step, right, np.zeros(PROBLEMS), np.full(PROBLEMS, 900.0))
    return result


def made_texts(variant: str, step: int, answers: int = 2) -> Texts:
    """Answers to the first and the last problem, every second one the same, and a training group of four."""
    samples = [
        made.sample(
            step=step,
            problem=IDS[place],
            benchmark=NAMES[place],
            draw=draw,
            prompt=f"What is {place} + 1? {HOSTILE if place else ''}",
            response=f"{variant} at step {step}, draw {draw % 2}: {HOSTILE}"
            + (LONG_LINE if draw % 2 else "\nAnswer: 1"),
            answer=HOSTILE if draw % 2 else "1",
            truth="1",
            right=not draw % 2,
            stop=HOSTILE if draw % 2 else "end",
        )
        for place in (0, PROBLEMS - 1)
        for draw in range(answers)
    ]
    group = [
        made.sample(
            step=step,
            problem="train-7",
            draw=draw,
            response=texts.as_text(f"training {draw} {HOSTILE}"),
            kind=TRAINING,
            group=3,
            reward=float(draw % 2),
            advantage=draw % 2 - 0.5,
            right=bool(draw % 2),
        )
        for draw in range(4)
    ]
    return Texts(step, (*samples, *group))


def made_tokens(variant: str, lengths: tuple[int, ...] = (TOKENS, 600)) -> RecordedTokens:
    """Words of which one in fifty tries to break out of the page."""
    drawn = made.tokens(lengths, seed=3, rule=variant, step=T_STOP, spread=0.15)
    words = ["the", " answer", " is", "\n", " therefore", " 42", ",", f" {HOSTILE}", " \\frac{1}{2}"]
    share = [0.2, 0.15, 0.15, 0.03, 0.1, 0.14, 0.13, 0.02, 0.08]
    token = np.random.default_rng(9).choice(9, len(drawn.token), p=share).astype(np.int32)
    return replace(
        drawn,
        rule=RULES[variant],
        token=token,
        vocabulary=np.arange(9, dtype=np.int32),
        pieces=tuple(map(texts.as_text, words)),
        advantage=np.ones(len(lengths), np.float32),
    )


def add_answers(uri: str, ids: Mapping[str, str]) -> None:
    """Puts the files of every run into the store."""
    for run_id, mlflow_id in ids.items():
        variant, _, seed = run_id.partition("-")
        files = {OUTCOMES: outcomes.write(made_outcomes(variant, int(seed)))}
        files |= {texts_name(step): texts.write(made_texts(variant, step, 3)) for step in (0, 100, T_STOP)}
        files[tokens_name(T_STOP)] = tokens.write(made_tokens(variant))
        for name, content in files.items():
            log_file(MlflowClient(uri), mlflow_id, name, content)


def log_file(client: MlflowClient, mlflow_id: str, name: str, content: bytes) -> None:
    """One artifact."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(name).name)
        path.write_bytes(content)
        client.log_artifact(mlflow_id, str(path), str(Path(name).parent))
