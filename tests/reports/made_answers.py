"""Two methods with two seeds on one of the paper's models, as if they had been trained here, and what they kept of
their answers, hostile texts among it.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.answers import outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES, Outcomes
from cppo_lab.answers.texts import TRAINING, Texts, texts_name
from cppo_lab.answers.tokens import RecordedTokens, tokens_name
from cppo_lab.reports.sweep import ReportRequest
from tests.analysis.made_sweeps import MadeRun, write_runs
from tests.answers import made
from tests.reports.conftest import request_of

BENCHMARKS = ("aime24", "aime25", "aime26")
STEPS = range(0, 201, 10)
T_STOP = STEPS[-1]
HEIGHT = {"dppo": 0.25, "cppo": 0.35}


def value(height: float, seed: int, step: int) -> float:
    """The score of a run: it rises in a straight line, with a tooth every third evaluation."""
    return height * step / T_STOP + 0.01 * seed + (0.02 if step % 30 == 0 else 0.0)


def write_pair(folder: Path, model: str = "qwen3_8b_base") -> tuple[ReportRequest, dict[str, str]]:
    """A store with the runs in a folder: the request of their report, and the runs' MLflow ids."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    runs = [
        MadeRun(
            variant,
            model,
            seed,
            logged={
                schema.validation_metric(name): {step: value(height, seed, step) for step in STEPS}
                for name in BENCHMARKS
            },
            t_stop=T_STOP,
            run_id=f"{variant}-{seed}",
            core="verl",
        )
        for variant, height in HEIGHT.items()
        for seed in (0, 1)
    ]
    ids = write_runs(uri, runs, params={"model.repository": "Qwen/Qwen3-8B-Base"})
    return request_of(runs, uri, folder / "out"), ids


PROBLEMS, SAMPLES = 30, 16
HOSTILE = (
    '</script><script>document.title="broken"</script><img src=x onerror="document.title=1">'
    f"\u202etxet desrever\u202c \x00\x1b[31m \ud800 {chr(0x200B)} & &lt; <!-- "
)
LONG_LINE = "never ends " * 95_000  # a megabyte without a line end
TOKENS = 16_384
CONSTANTS = {
    "dppo": {"delta": 0.15},
    "cppo": {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "fixed"},
}
IDS = made.outcomes(PROBLEMS, benchmarks=BENCHMARKS).problems


def made_outcomes(variant: str, seed: int) -> Outcomes:
    """The last problem is solved by CPPO alone, and the one before it by nobody."""
    drawn = made.outcomes(PROBLEMS, len(STEPS), SAMPLES, 2 * seed + (variant == "cppo"), BENCHMARKS)
    right = drawn.right.copy()
    right[:, -2:] = 0
    right[-1, -1] = 12 * (variant == "cppo")
    return replace(drawn, right=right)


def made_texts(variant: str, step: int, answers: int = 2) -> Texts:
    """Answers to the first and the last problem, every second one the same, and a training group of four."""
    samples = [
        made.sample(
            step=step,
            problem=IDS[place],
            benchmark=BENCHMARKS[place // 10],
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
        rule=replace(drawn.rule, constants=CONSTANTS[variant]),
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
