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
from typing import Any

import numpy as np
from common import Clock, arguments, finish

from cppo_lab.answers import outcomes
from cppo_lab.answers.records import Recording, StepAnswers
from cppo_lab.answers.texts import Sample
from cppo_lab.answers.tokens import RecordedTokens, RuleUsed
from cppo_lab.core_records import Resources
from cppo_lab.cores.mini.trainer import MiniAnswerRecorder, Trainer
from cppo_lab.spec import AnswersSpec
from cppo_lab.sweep.compose import compose
from tests.answers.made import sample

VALIDATIONS, PROBLEMS, SAMPLES, LENGTH = 112, 90, 16, 16_384
DEFAULT = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50.0)
TARGETS = {"cost_ratio": 0.02, "texts_and_tokens_mebibytes": 50.0, "outcomes_mebibytes": 1.0}
UNITS = {"cost_ratio": "", "*_mebibytes": "MiB"}


def cost_ratio(periods: int) -> float:
    """Of `periods` times the steps between two validations."""
    clock = Clock()
    for name in ("batch", "update", "validation", "take"):
        clock.around(MiniAnswerRecorder, name)
    start = ["model.warm_start.steps=1", "model.warm_start.target_accuracy=null"]
    run: Any = compose(["model=mini_base", "rule=cppo", *start]).run
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def save(name: str, content: bytes) -> None:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(content)

        trainer = Trainer(run, Resources(place, place, device="cpu", answers=DEFAULT))
        recording = Recording(DEFAULT, place, VALIDATIONS, save)
        clock.around(recording, "add")
        trainer.step()
        clock.seconds, began = 0.0, time.process_time()
        trainer.steps = 0
        for _ in range(periods * run.validation.every):
            trainer.step()
            if trainer.steps % run.validation.every == 0:
                trainer.validate()
                recording.add(trainer.answers())
        return clock.seconds / (time.process_time() - began - clock.seconds)


def mebibytes(validations: int) -> dict[str, float]:
    """Of the files of `validations` steps, brought to the paper's number of them."""
    generator, letters = np.random.default_rng(0), random.Random(0)
    words = ["".join(letters.choices("etaoinshrdlucmf", k=letters.randint(1, 6))) for _ in range(5000)]
    benchmarks = ["aime24", "aime25", "aime26"]
    of_problem = np.arange(PROBLEMS) % 3
    ids = outcomes.problem_ids([benchmarks[place] for place in of_problem], [*map(str, range(PROBLEMS))])
    whole = empty = outcomes.no_outcomes(SAMPLES, benchmarks, ids, of_problem.tolist())
    written: dict[str, bytes] = {}
    recording = Recording(DEFAULT, Path("nowhere"), VALIDATIONS + 1, written.__setitem__)
    for number in range(VALIDATIONS + 1):
        right = generator.binomial(SAMPLES, 0.4, PROBLEMS)
        validation = (10 * number, right, SAMPLES - right, generator.gamma(4, 2000, PROBLEMS))
        whole = whole.append(*validation)
        if number < validations:
            draw = random.Random(10 * number)
            samples = [_sample(10 * number, place, words, draw) for place in range(8 + 2 * SAMPLES)]
            recording.add(StepAnswers(empty.append(*validation), samples, _tokens(10 * number, generator)))
    size = sum(len(data) for name, data in written.items() if "texts" in name or "tokens" in name)
    return {
        "texts_and_tokens_mebibytes": size * (VALIDATIONS + 1) / validations / 2**20,
        "outcomes_mebibytes": len(outcomes.write(whole)) / 2**20,
    }


def _sample(step: int, number: int, words: list[str], draw: random.Random) -> Sample:
    """A problem's first answer; from 8 on a response of one of two groups."""
    group = {"kind": "training", "draw": (number - 8) % SAMPLES} if number >= 8 else {}
    prompt, response = (" ".join(draw.choices(words, k=length)) for length in (80, LENGTH))
    answer: Sample = sample(
        step=step, problem=str(number), prompt=prompt, response=response, truth="1", answer="2",
        right=False, length=LENGTH, cut_off=True, stop="length", **group,
    )  # fmt: skip
    return answer


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
    """Measures and prints."""
    quick = arguments(__doc__, "one validation on the core, two at the paper's scale").quick
    figures = mebibytes(2 if quick else 8) | {"cost_ratio": cost_ratio(1 if quick else 3)}
    finish(figures, UNITS, at_most=TARGETS, quick=quick)


if __name__ == "__main__":
    main()
