"""What the trainer keeps of a validated step, from a queue in memory: outcomes, some texts, training groups."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from cppo_lab import schema
from cppo_lab.answers.outcomes import problem_ids
from cppo_lab.answers.records import StepAnswers
from cppo_lab.answers.texts import VALIDATION
from cppo_lab.answers.tokens import chosen_groups
from cppo_lab.cores.mini.tasks import make_task, validation_sets
from cppo_lab.cores.verl.answers import TrainedResponse, VerlAnswerRecorder, Wording
from cppo_lab.cores.verl.checkpoints import validation_metrics
from cppo_lab.cores.verl.hf_models import as_fast_tokenizer, write_task
from cppo_lab.spec import AnswersSpec
from cppo_lab.sweep.compose import compose
from tests.answers.made import averages
from tests.cores.verl.queue_in_memory import Queue

SAMPLES, STEP, LONGEST = 4, 10, 12
SETTINGS = AnswersSpec(keep=True, problems=3, groups=2, megabytes=50)
Rows = list[dict[str, Any]]


RUN = compose(
    ["core=verl", "model=tiny_qwen3", f"validation.samples={SAMPLES}", "data.validation_problems=5",
     f"rollout.max_response_length={LONGEST}", "training.t_stop=2", "rule=cppo"]
).run  # fmt: skip
TASK = make_task(RUN.data)
TOKENIZER = TASK.tokenizer


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows]:
    """Training and validation rows as verl's data set hands them on."""
    folder = tmp_path_factory.mktemp("data")
    paths = folder / "train.parquet", folder / "validation.parquet"
    write_task(RUN, *paths)
    train, validation = (
        [row | {"raw_prompt": row["prompt"]} for row in read_table(path).to_pylist()] for path in paths
    )
    return train, validation


class Answered:
    """Responses in the queue, each with a made-up grade."""

    def __init__(self, rows: Rows, queue: Queue) -> None:
        self.queue, drawn = queue, np.random.default_rng(3)
        self.grades: dict[str, float] = {}
        for place, row in enumerate(rows):
            for draw in range(SAMPLES):
                key = f"uid{place}_{draw}_0"
                length = int(drawn.integers(2, LONGEST + 1))
                tokens = torch.from_numpy(drawn.integers(TOKENIZER.eos, size=length))
                if length < LONGEST:
                    tokens[-1] = TOKENIZER.eos
                self.grades[key] = float(drawn.integers(2))
                queue.rows[key] = {
                    **{name: row[name] for name in ("raw_prompt", "reward_model", "data_source", "extra_info")},
                    "prompts": torch.tensor([1, 2, 3 + place % 4]), "responses": tokens,
                    "extra_fields": {"reward_extra_info": {"acc": self.grades[key]}},
                }  # fmt: skip
                queue.tags[key] = {"response_len": length}
        self.keys = [str(key) for key in drawn.permutation(list(self.grades))]  # as they come back

    def batch(self, keys: list[str]) -> KVBatchMeta:
        return KVBatchMeta(keys=keys, tags=[self.queue.tags[key] for key in keys], partition_id="val")

    def tokens(self, key: str) -> list[int]:
        return self.queue.rows[key]["responses"].tolist()


def record_of(rows: Rows, settings: AnswersSpec = SETTINGS) -> VerlAnswerRecorder:
    decode = as_fast_tokenizer(TOKENIZER).decode
    return VerlAnswerRecorder(RUN, settings, rows, partial(decode, skip_special_tokens=True), decode)


def validated(
    rows: Rows, patch: pytest.MonkeyPatch, settings: AnswersSpec = SETTINGS
) -> tuple[Answered, StepAnswers]:
    """A validation in two batches. One response of the first problem failed, and all of the last."""
    answered = Answered(rows, Queue(patch))
    lost = "uid0_1_0", f"uid{len(rows) - 1}_"
    answered.keys = [key for key in answered.keys if not key.startswith(lost)]
    record, half = record_of(rows, settings), len(answered.keys) // 2
    for keys in (answered.keys[:half], answered.keys[half:]):
        record.validation(STEP, answered.batch(keys))
    answers = record.take(STEP)
    assert record.take(STEP) is None
    return answered, answers


def of_verl(grades: dict[str, list[list[float]]], samples: int, **extra: Any) -> dict[str, float]:
    """What verl's own code makes of grades: benchmark -> problem -> its responses' grades."""
    problems = [(source, f"{source}-{i}", g) for source, many in grades.items() for i, g in enumerate(many)]
    rows = [(source, uid, grade) for source, uid, of_problem in problems for grade in of_problem]
    sources, uids, acc = map(list, zip(*rows, strict=True))
    infos = {"reward": [*acc], "acc": acc} | {key: [value] * len(acc) for key, value in extra.items()}
    expected = {(source, uid): samples for source, uid, _ in problems}
    metrics: dict[str, float] = PPOTrainer._val_metrics_update(
        None, sources, uids, infos, [2] * len(acc), expected_acc_counts=expected
    )
    return metrics


def test_outcomes_are_those_of_a_plain_loop_and_of_verls_own_code(
    rows: tuple[Rows, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Avg@k is the metric that is logged, exactly."""
    answered, answers = validated(rows[1], monkeypatch)
    outcomes, names = answers.outcomes, RUN.data.benchmarks
    assert (outcomes.steps.tolist(), outcomes.benchmarks) == ([STEP], names)
    grades: dict[str, list[list[float]]] = {name: [] for name in names}
    for place, row in enumerate(rows[1]):
        keys = [key for key in answered.keys if key.split("_")[0] == f"uid{place}"]
        lengths = [len(answered.tokens(key)) for key in keys]
        graded = [answered.grades[key] for key in keys]
        grades[row["data_source"]].append(graded)
        assert outcomes.benchmarks[outcomes.benchmark_of[place]] == row["data_source"]
        assert outcomes.right[0, place] == sum(graded)
        assert outcomes.cut_off[0, place] == sum(length == LONGEST for length in lengths)
        assert outcomes.length[0, place] == pytest.approx(sum(lengths) / max(len(lengths), 1))
    assert outcomes.cut_off.sum() > 0 and outcomes.length[0, -1] == 0
    logged = validation_metrics(of_verl(grades, SAMPLES), names, SAMPLES)
    assert averages(outcomes)[0].tolist() == [
        logged[schema.validation_metric(name, SAMPLES)] for name in names
    ]


def test_names_of_verls_validation_metrics() -> None:
    """Responses that failed count as wrong; the mean is one of benchmarks; foreign sources are left out."""
    grades = {"aime24": [[1.0, 0.0, 1.0], [0.0] * 4], "aime25": [[1.0] * 4], "amc": [[1.0] * 4]}
    reported = of_verl(grades, 4, answer_rule=0.25)
    metrics = validation_metrics(reported, ("aime24", "aime25"), 4)
    assert metrics == {
        "val/aime24/avg_at_4": 2 / 8,
        "val/aime25/avg_at_4": 1.0,
        "val/mean/avg_at_4": (2 / 8 + 1) / 2,
        "val/aime24/answer_rule_at_4": 0.25,
        "val/aime25/answer_rule_at_4": 0.25,
    }
    assert all(map(schema.is_known_metric, metrics))
    # And the means of all else that a user's reward returns, of the same responses.
    parts = validation_metrics(of_verl(grades, 4, format=0.5), ("aime24", "aime25"), 4, parts=True)
    rewards = {name: part for name, part in parts.items() if name not in metrics}
    assert rewards == {"reward/aime24/format": 0.5, "reward/aime25/format": 0.5}
    with pytest.raises(ValueError, match=r"no val/aime24/avg_at_16, .* among .*val-core/aime24/acc/mean@4"):
        validation_metrics(reported, ("aime24", "aime25"), 16)


def test_problems_have_the_ids_of_the_embedded_core(rows: tuple[Rows, Rows]) -> None:
    """Whatever their place: the order of the rows does not matter."""
    sets = validation_sets(TASK)
    sources = [name for name, problems in sets.items() for _ in range(len(problems))]
    identities = [str(identity) for problems in sets.values() for identity in problems.identities()]
    expected, (train, validation) = problem_ids(sources, identities), rows
    assert record_of(validation).problems == expected
    assert record_of(validation[::-1]).problems == expected[::-1]
    assert record_of(train).problems == ()
    with pytest.raises(ValueError, match="the same data_source and extra_info"):
        record_of([*validation, validation[0]])


def test_only_the_texts_of_the_chosen_problems_are_fetched(
    rows: tuple[Rows, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, answers = validated(rows[1], monkeypatch)
    chosen = {sample.problem for sample in answers.samples}
    assert len(chosen) == SETTINGS.problems
    fetched = {key for keys, fields in answered.queue.asked for key in keys if "responses" in fields}
    places = [answers.outcomes.problems.index(problem) for problem in chosen]
    assert fetched == {key for key in answered.keys if int(key.split("_")[0][3:]) in places}
    assert len(answers.samples) == len(fetched)
    for sample in answers.samples:
        key = f"uid{answers.outcomes.problems.index(sample.problem)}_{sample.draw}_0"
        tokens = answered.tokens(key)
        cut_off = len(tokens) == LONGEST
        assert (sample.kind, sample.step, sample.length) == (VALIDATION, STEP, len(tokens))
        assert sample.right == bool(answered.grades[key])
        assert (sample.cut_off, sample.stop) == (cut_off, "length" if cut_off else "end")
        assert sample.response == " ".join(TOKENIZER.name(t) for t in tokens if t != TOKENIZER.eos)
        number = tokens[-1] == TOKENIZER.eos and tokens[-2] < TOKENIZER.operator
        assert sample.answer == (str(tokens[-2] % TOKENIZER.modulus) if number else None)
        assert (sample.group, sample.reward, sample.advantage) == (None, None, None)
    assert {sample.cut_off for sample in answers.samples} == {True, False}
    every = SETTINGS.model_copy(update={"problems": "all"})
    answered, answers = validated(rows[1], monkeypatch, every)
    assert len(answers.samples) == len(answered.keys)


def test_training_responses_are_chosen_by_whole_groups(rows: tuple[Rows, Rows]) -> None:
    record = record_of(rows[1])
    trained = [
        TrainedResponse(f"{group}_{draw}", group, draw, 1.0, 0.5) for draw in (1, 0) for group in (5, 2, 9)
    ]
    record.choose(trained)
    assert [response.group for response in record.chosen] == [
        group for group in chosen_groups([2, 5, 9], SETTINGS.groups) for _ in range(2)
    ]
    assert [response.draw for response in record.chosen] == [0, 1] * SETTINGS.groups
    record.choose([])
    assert record.chosen == []


def test_the_words_of_mathematics() -> None:
    words = Wording(compose(["core=verl", "model=qwen3_1_7b_base"]).run.data)  # type: ignore[arg-type]
    asked = [{"role": "user", "content": "What is $6 \\cdot 7$?"}]
    row = {"raw_prompt": asked, "reward_model": {"ground_truth": "42"}}
    assert words.question(row) == "What is $6 \\cdot 7$?"
    assert words.truth(row) == "42"
    assert words.answer([], "I think.\nAnswer: $42$") == "$42$"  # as it is handed to math-verify
    assert words.answer([], "<think> 42") is None
