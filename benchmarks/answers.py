"""What keeping answers costs: processor time on the embedded core, bytes at the paper's scale.

cost_ratio   processor time of everything that is done for the answers of a validated step (decoding, tokens, packing,
             writing files) over that of training and validating the steps between two validations, on the model
             `mini_base` at its own sizes. Both are measured in the same steps of one run.
*_mebibytes  files of a run of 112 validations behind step 0 with answers of 8 of 90 problems and 2 groups of 16
             responses, all of 16,384 tokens (about four characters of random words each): the longest that there are.

    python benchmarks/answers.py [--quick]

The last line is JSON, see `common.py`.
"""

import random
import tempfile
import time
from pathlib import Path

import numpy as np
from common import Clock, arguments, result

from cppo_lab.answers import outcomes as outcome_files
from cppo_lab.answers import texts as text_files
from cppo_lab.answers import tokens as token_files
from cppo_lab.answers.outcomes import no_outcomes, problem_ids
from cppo_lab.answers.recording import Recording, StepAnswers
from cppo_lab.answers.texts import Sample
from cppo_lab.answers.tokens import RecordedTokens, RuleUsed
from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini.answers import MiniAnswerRecorder
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.spec import AnswersSpec
from cppo_lab.sweep.compose import compose

VALIDATIONS, PROBLEMS, SAMPLES, LENGTH = 112, 90, 16, 16_384
DEFAULT = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50.0)
TARGETS = {"cost_ratio": 0.02, "texts_and_tokens_mebibytes": 50.0, "outcomes_mebibytes": 1.0}
UNITS = {"cost_ratio": "", "*_mebibytes": "MiB", "*_kept": "", "step_seconds": "s"}


def cost(periods: int) -> dict[str, float]:
    """Of `periods` times the steps between two validations."""
    clock = Clock()
    for name in ("batch", "update", "validation", "take"):
        clock.around(MiniAnswerRecorder, name)
    run = compose(
        ["model=mini_base", "rule=cppo", "model.warm_start.steps=20", "model.warm_start.target_accuracy=null"]
    ).run
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def save(name: str, content: bytes) -> None:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(content)

        trainer = Trainer(run, Resources(place, place, device="cpu", answers=DEFAULT))  # type: ignore[arg-type]
        recording = Recording(DEFAULT, place, VALIDATIONS, save)
        clock.around(recording, "add")
        trainer.step()
        clock.seconds, began = 0.0, time.process_time()
        steps = periods * run.validation.every
        trainer.steps = 0
        for _ in range(steps):
            trainer.step()
            if trainer.steps % run.validation.every == 0:
                trainer.validate()
                recording.add(trainer.answers())
        whole = time.process_time() - began
    return {
        "cost_ratio": clock.seconds / (whole - clock.seconds),
        "step_seconds": (whole - clock.seconds) / steps,
    }


def sizes(validations: int) -> dict[str, float]:
    """Of `validations` steps, brought to the paper's number of them."""
    generator, words = np.random.default_rng(0), _words()
    names = [f"aime{24 + place % 3}" for place in range(PROBLEMS)]
    ids = problem_ids(names, [str(place) for place in range(PROBLEMS)])
    empty = no_outcomes(
        SAMPLES, ["aime24", "aime25", "aime26"], ids, [place % 3 for place in range(PROBLEMS)]
    )
    written: dict[str, bytes] = {}
    recording = Recording(DEFAULT, Path("nowhere"), VALIDATIONS + 1, written.__setitem__)
    for number in range(validations):
        right = generator.binomial(SAMPLES, 0.4, PROBLEMS)
        outcomes = empty.append(10 * number, right, SAMPLES - right, generator.gamma(4, 2000, PROBLEMS))
        recording.add(
            StepAnswers(outcomes, list(_samples(10 * number, words)), _tokens(10 * number, generator))
        )
    texts = [data for name, data in written.items() if "texts" in name]
    tokens = [data for name, data in written.items() if "tokens" in name]
    scale = (VALIDATIONS + 1) / validations / 2**20
    long = empty
    for number in range(VALIDATIONS + 1):
        right = generator.binomial(SAMPLES, 0.4, PROBLEMS)
        long = long.append(10 * number, right, SAMPLES - right, generator.gamma(4, 2000, PROBLEMS))

    samples = sum(len(text_files.read(data, "texts").samples) for data in texts)
    responses = sum(len(token_files.read(data, "tokens").ends) for data in tokens)
    return {
        "texts_mebibytes": scale * sum(map(len, texts)),
        "tokens_mebibytes": scale * sum(map(len, tokens)),
        "texts_and_tokens_mebibytes": scale * sum(map(len, [*texts, *tokens])),
        "outcomes_mebibytes": len(outcome_files.write(long)) / 2**20,
        "samples_of_a_step_kept": samples / validations,
        "token_responses_of_a_step_kept": responses / validations,
    }


def _words() -> list[str]:
    generator = random.Random(0)
    return ["".join(generator.choices("etaoinshrdlucmf", k=generator.randint(1, 6))) for _ in range(5000)]


def _samples(step: int, words: list[str]) -> list[Sample]:
    """Each problem's first answer, and the responses of two groups."""
    generator = random.Random(step)
    found = []
    for number in range(8 + 2 * SAMPLES):
        training = number >= 8
        found.append(
            Sample(
                kind="training" if training else "validation",
                step=step,
                benchmark="aime24",
                problem=str(number),
                draw=(number - 8) % SAMPLES if training else 0,
                prompt=" ".join(generator.choices(words, k=80)),
                response=" ".join(generator.choices(words, k=LENGTH)),
                truth="1",
                answer="2",
                right=False,
                length=LENGTH,
                cut_off=True,
                stop="length",
            )
        )
    return found


def _tokens(step: int, generator: np.random.Generator) -> RecordedTokens:
    """Two responses, of which the second has no room any more."""
    count = 2 * LENGTH
    logp = -generator.exponential(0.5, count).astype(np.float32)
    token = np.minimum(generator.zipf(1.2, count), 150_000).astype(np.int32)
    vocabulary = np.unique(token)
    return RecordedTokens(
        step=step,
        rule=RuleUsed("cppo", None, {"delta": 0.1}, "topk", "tv", 20, "union"),
        tests=("threshold", "budget"),
        ends=np.array([LENGTH, count]),
        group=np.zeros(2, np.int64),
        draw=np.arange(2),
        advantage=np.ones(2, np.float32),
        reward=np.ones(2, np.float32),
        token=token,
        rollout_logp=np.minimum(logp + generator.normal(0, 0.05, count), 0).astype(np.float32),
        logp=logp,
        divergence=generator.gamma(1, 0.02, count).astype(np.float32),
        keep=(generator.random(count) > 0.02).astype(np.float32),
        reason=(generator.random(count) < 0.02).astype(np.uint8),
        vocabulary=vocabulary,
        pieces=tuple(f" piece{number}" for number in vocabulary.tolist()),
    )


def main() -> None:
    quick = arguments(__doc__, "one validation on the core, two at the paper's scale").quick
    values = sizes(2 if quick else 8) | cost(1 if quick else 3)
    for name, value in values.items():
        print(f"{name:32} {value:.4g}")
    print(result("answers", values, UNITS, at_most=TARGETS, quick=quick).line())


if __name__ == "__main__":
    main()
