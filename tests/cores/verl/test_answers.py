"""What the trainer keeps of a validated step, from a queue in memory: outcomes, some texts, training groups."""

from typing import Any

import numpy as np
import pytest
import torch
from transfer_queue import KVBatchMeta

from cppo_lab.answers.outcomes import problem_ids
from cppo_lab.answers.recording import StepAnswers
from cppo_lab.answers.replay import replay
from cppo_lab.answers.texts import TRAINING, VALIDATION
from cppo_lab.cores.mini.tasks.base import make_task, validation_sets
from cppo_lab.cores.verl.answers import OfMathematics, VerlAnswerRecorder, held_out, wording_of
from cppo_lab.cores.verl.checkpoints import validation_metrics
from cppo_lab.cores.verl.export_hf import as_fast_tokenizer, write_task
from cppo_lab.cores.verl.kept_responses import KeptResponse
from cppo_lab.data.manifest import read_rows
from cppo_lab.spec import AnswersSpec, TaskData, VerlRun
from cppo_lab.sweep.compose import compose
from tests.cores.verl.queue_in_memory import Queue
from tests.cores.verl.test_validation import of_verl
from tests.oracles.loops import cppo_response

pytestmark = pytest.mark.verl
SAMPLES, STEP, LONGEST = 4, 10, 12
SETTINGS = AnswersSpec(keep=True, problems=3, groups=2, megabytes=50)
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run() -> VerlRun:
    found = compose(
        ["core=verl", "model=tiny_qwen3", f"validation.samples={SAMPLES}", "data.validation_problems=5",
         f"rollout.max_response_length={LONGEST}", "training.t_stop=2", "rule=cppo"]
    ).run  # fmt: skip
    assert isinstance(found, VerlRun)
    return found


@pytest.fixture(scope="module")
def rows(run: VerlRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """Training and validation rows as verl's data set hands them on."""
    folder = tmp_path_factory.mktemp("data")
    write_task(run, folder / "train.parquet", folder / "validation.parquet")
    return {
        kind: [row | {"raw_prompt": row["prompt"]} for row in read_rows(folder / f"{kind}.parquet")]
        for kind in ("train", "validation")
    }


class Answered:
    """Responses in the queue, each with a made-up grade."""

    def __init__(self, run: VerlRun, rows: Rows, patch: pytest.MonkeyPatch, draws: int) -> None:
        assert isinstance(run.data, TaskData)
        self.queue, self.task = Queue(patch), make_task(run.data)
        self.draw = np.random.default_rng(3)
        self.rows, self.grades = rows, {}
        eos, keys = self.task.tokenizer.eos, []
        for place, row in enumerate(rows):
            for draw in range(draws):
                key = f"uid{place}_{draw}_0"
                length = int(self.draw.integers(2, LONGEST + 1))
                tokens = [int(self.draw.integers(eos)) for _ in range(length)]
                if length < LONGEST:
                    tokens[-1] = eos
                self.grades[key] = float(self.draw.integers(2))
                self.queue.rows[key] = {
                    **{name: row[name] for name in ("raw_prompt", "reward_model", "data_source", "extra_info")},
                    "prompts": torch.tensor([1, 2, 3 + place % 4]), "responses": torch.tensor(tokens),
                    "extra_fields": {"reward_extra_info": {"acc": self.grades[key]}},
                }  # fmt: skip
                self.queue.tags[key] = {"response_len": length}
                keys.append(key)
        self.keys = [keys[i] for i in self.draw.permutation(len(keys))]  # as they come back

    def batch(self, keys: list[str] | None = None) -> KVBatchMeta:
        keys = self.keys if keys is None else keys
        return KVBatchMeta(keys=keys, tags=[self.queue.tags[key] for key in keys], partition_id="val")

    def length(self, key: str) -> int:
        return len(self.queue.rows[key]["responses"])


def record_of(run: VerlRun, rows: Rows, settings: AnswersSpec = SETTINGS) -> VerlAnswerRecorder:
    assert isinstance(run.data, TaskData)
    tokenizer = as_fast_tokenizer(make_task(run.data).tokenizer)
    return VerlAnswerRecorder(
        run, settings, rows, lambda ids: tokenizer.decode(ids, skip_special_tokens=True), tokenizer.decode
    )


def validated(
    run: VerlRun, rows: Rows, patch: pytest.MonkeyPatch, settings: AnswersSpec = SETTINGS
) -> tuple[Answered, StepAnswers]:
    """A validation in two batches. One response of the first problem failed, and all of the last."""
    answered = Answered(run, rows, patch, SAMPLES)
    lost = {"uid0_1_0", *(f"uid{len(rows) - 1}_{draw}_0" for draw in range(SAMPLES))}
    answered.keys = [key for key in answered.keys if key not in lost]
    record = record_of(run, rows, settings)
    half = len(answered.keys) // 2
    for keys in (answered.keys[:half], answered.keys[half:]):
        record.validation(STEP, answered.batch(keys))
    found = record.take(STEP)
    assert found is not None
    assert record.take(STEP) is None
    return answered, found


def test_outcomes_are_those_of_a_plain_loop(
    run: VerlRun, rows: dict[str, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, found = validated(run, rows["validation"], monkeypatch)
    one = found.outcomes
    assert one.steps.tolist() == [STEP]
    assert one.benchmarks == run.data.benchmarks
    for place, row in enumerate(rows["validation"]):
        keys = [key for key in answered.keys if key.split("_")[0] == f"uid{place}"]
        lengths = [answered.length(key) for key in keys]
        assert one.benchmarks[one.benchmark_of[place]] == row["data_source"]
        assert one.right[0, place] == sum(answered.grades[key] for key in keys)
        assert one.cut_off[0, place] == sum(length == LONGEST for length in lengths)
        assert one.length[0, place] == pytest.approx(sum(lengths) / max(len(lengths), 1))
    assert one.cut_off.sum() > 0
    assert one.length[0, -1] == 0


def test_avg_at_k_is_the_metric_that_is_logged(
    run: VerlRun, rows: dict[str, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, against verl's own code."""
    answered, found = validated(run, rows["validation"], monkeypatch)
    grades: dict[str, list[list[float]]] = {name: [] for name in run.data.benchmarks}
    for place, row in enumerate(rows["validation"]):
        keys = [key for key in answered.keys if key.split("_")[0] == f"uid{place}"]
        grades[row["data_source"]].append([answered.grades[key] for key in keys])
    logged = validation_metrics(of_verl(grades, SAMPLES), run.data.benchmarks, SAMPLES)
    averages = found.outcomes.averages()[0].tolist()
    for benchmark, average in zip(run.data.benchmarks, averages, strict=True):
        assert average == logged[f"val/{benchmark}/avg_at_{SAMPLES}"]


def test_problems_have_the_ids_of_the_embedded_core(run: VerlRun, rows: dict[str, Rows]) -> None:
    """Whatever their place: the order of the rows does not matter."""
    assert isinstance(run.data, TaskData)
    sets = validation_sets(make_task(run.data))
    sources = [name for name, problems in sets.items() for _ in range(len(problems))]
    expected = problem_ids(sources, [str(one) for problems in sets.values() for one in problems.identities()])
    found = held_out(rows["validation"], run.data.benchmarks, wording_of(run.data))
    assert found.problems == expected
    backwards = held_out(rows["validation"][::-1], run.data.benchmarks, wording_of(run.data))
    assert backwards.problems == expected[::-1]
    assert held_out(rows["train"], run.data.benchmarks, wording_of(run.data)).problems == ()


def test_rows_that_cannot_be_told_apart_are_refused(run: VerlRun, rows: dict[str, Rows]) -> None:
    with pytest.raises(ValueError, match="the same data_source and extra_info"):
        held_out([*rows["validation"], rows["validation"][0]], run.data.benchmarks, wording_of(run.data))


def test_only_the_texts_of_the_chosen_problems_are_fetched(
    run: VerlRun, rows: dict[str, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, found = validated(run, rows["validation"], monkeypatch)
    chosen = sorted({one.problem for one in found.samples})
    assert len(chosen) == SETTINGS.problems
    fetched = {key for keys, fields in answered.queue.asked for key in keys if "responses" in fields}
    places = [found.outcomes.problems.index(one) for one in chosen]
    assert fetched == {key for key in answered.keys if int(key.split("_")[0][3:]) in places}
    assert len(found.samples) == len(fetched)
    eos, modulus = answered.task.tokenizer.eos, answered.task.tokenizer.modulus
    for one in found.samples:
        place = found.outcomes.problems.index(one.problem)
        tokens = answered.queue.rows[f"uid{place}_{one.draw}_0"]["responses"].tolist()
        assert (one.kind, one.step, one.length) == (VALIDATION, STEP, len(tokens))
        assert one.right == bool(answered.grades[f"uid{place}_{one.draw}_0"])
        cut_off = len(tokens) == LONGEST
        assert (one.cut_off, one.stop) == (cut_off, "length" if cut_off else "end")
        shown = [answered.task.tokenizer.name(token) for token in tokens if token != eos]
        assert one.response == " ".join(shown)
        number = len(tokens) > 1 and tokens[-1] == eos and tokens[-2] < answered.task.tokenizer.operator
        assert one.answer == (str(tokens[-2] % modulus) if number else None)
        assert (one.group, one.reward, one.advantage) == (None, None, None)
    assert {one.cut_off for one in found.samples} == {True, False}


def test_all_problems_on_demand(run: VerlRun, rows: dict[str, Rows], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = SETTINGS.model_copy(update={"problems": "all"})
    answered, found = validated(run, rows["validation"], monkeypatch, wanted)
    assert len(found.samples) == len(answered.keys)


REWARDS = [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]]


def trained(
    run: VerlRun, rows: dict[str, Rows], patch: pytest.MonkeyPatch
) -> tuple[Answered, VerlAnswerRecorder, list[KeptResponse]]:
    """A training batch of five prompts, one of which teaches nothing, and what two ranks have kept of it."""
    answered = Answered(run, rows["train"][:5], patch, 4)
    record = record_of(run, rows["validation"])
    keys = [f"uid{group}_{draw}_0" for group in range(5) for draw in range(4)]
    rewards = [reward for of_group in REWARDS for reward in of_group]
    advantages = [reward - sum(of_group) / 4 for of_group in REWARDS for reward in of_group]
    chosen = record.choose(
        keys, [i // 4 for i in range(20)], rewards, advantages, [i // 4 != 1 for i in range(20)]
    )
    assert [(one.group, one.draw) for one in chosen] == [(4, n) for n in range(4)] + [
        (2, n) for n in range(4)
    ]
    kept = []
    for place, one in enumerate(chosen):
        tokens = answered.queue.rows[one.key]["responses"].numpy().astype(np.int32)
        mu, pi = (-3 * answered.draw.random(len(tokens)).astype(np.float32) for _ in range(2))
        divergence = (0.3 * answered.draw.random(len(tokens))).astype(np.float32)
        mask, *_ = cppo_response(
            (pi - mu).tolist(), [one.advantage] * len(tokens), divergence.tolist(), adaptive=True,
            delta=run.rule.delta or 0, delta_b=run.rule.delta_b or 0, w_min=run.rule.w_min or 0,
        )  # fmt: skip
        kept.append(
            KeptResponse(
                place, one.advantage, ("threshold", "budget"), tokens, mu, pi, divergence,
                np.array(mask, np.float32), 1 - np.array(mask, np.uint8), np.empty(0, np.int32),
            )
        )  # fmt: skip
    return answered, record, kept


def test_training_groups_with_rewards_advantages_and_tokens(
    run: VerlRun, rows: dict[str, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, record, kept = trained(run, rows, monkeypatch)
    record.training(STEP, "train", [kept[1::2], kept[::2]])
    record.validation(STEP, answered_validation(run, rows["validation"], monkeypatch, answered))
    found = record.take(STEP)
    assert found is not None
    samples = [one for one in found.samples if one.kind == TRAINING]
    assert [(one.group, one.draw) for one in samples] == [(g, n) for g in (4, 2) for n in range(4)]
    for one in samples:
        assert one.group is not None
        assert one.reward == REWARDS[one.group][one.draw]
        assert one.advantage == one.reward - sum(REWARDS[one.group]) / 4
        assert one.right == (one.reward == 1)
    assert len({one.problem for one in samples}) == 2
    table = found.tokens
    assert table is not None
    assert table.group.tolist() == [4] * 4 + [2] * 4
    assert table.draw.tolist() == [0, 1, 2, 3] * 2
    assert table.rule.name == "cppo"
    assert table.reward.tolist() == [reward for group in (4, 2) for reward in REWARDS[group]]
    for one, place in zip(kept, table.responses(), strict=True):
        for name in ("token", "rollout_logp", "logp", "divergence", "keep", "reason"):
            np.testing.assert_array_equal(getattr(table, name)[place], getattr(one, name))
    names = [answered.task.tokenizer.name(int(token)) for token in table.token]
    assert table.texts() == names


def test_a_replay_of_the_runs_own_rule_is_the_plain_loops_mask(
    run: VerlRun, rows: dict[str, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table names rule and constants as a replay needs them."""
    answered, record, kept = trained(run, rows, monkeypatch)
    assert run.rule.delta_b_mode == "adaptive"
    record.training(STEP, "train", [kept])
    record.validation(STEP, answered_validation(run, rows["validation"], monkeypatch, answered))
    found = record.take(STEP)
    assert found is not None
    assert found.tokens is not None
    again = replay(found.tokens)
    np.testing.assert_array_equal(again.keep, found.tokens.keep)
    assert 0 < again.keep.mean() < 1


def answered_validation(run: VerlRun, rows: Rows, patch: pytest.MonkeyPatch, before: Answered) -> KVBatchMeta:
    """A validation behind the training step, in the queue that has the training rows already."""
    answered = Answered(run, rows, patch, SAMPLES)
    for key, row in before.queue.rows.items():
        answered.queue.rows.setdefault(key, row)
    return answered.batch()


def test_the_words_of_mathematics() -> None:
    words = OfMathematics()
    row = {
        "raw_prompt": [{"role": "user", "content": "What is $6 \\cdot 7$?"}],
        "reward_model": {"ground_truth": "42"},
    }
    assert words.asked(row) == "What is $6 \\cdot 7$?"
    assert words.truth(row) == "42"
    assert words.answer([], "I think.\nAnswer: $42$") == "$42$"  # as it is handed to math-verify
    assert words.answer([], "<think> 42") is None
