"""The embedded tasks: drawing, working and grading, each against a slow reference; nothing moved for old configs."""

import hashlib
import math
from collections import Counter
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.tasks import (
    OPERATORS,
    TASKS,
    Problems,
    Task,
    Tokenizer,
    answer_text,
    make_task,
    sample_training_problems,
    validation_sets,
)
from cppo_lab.cores.mini.warm_start import _imitation_loss, _tie_spellings
from cppo_lab.spec import TaskData
from cppo_lab.sweep.compose import compose
from tests.cores.test_mini import check_frequencies, seeded, tiny

NAMES = sorted(TASKS)


def task_of(name: str, modulus: int = 10, operations: int = 3, spellings: int = 1, problems: int = 1) -> Task:
    data = {
        "name": "t", "task": name, "modulus": modulus, "operations": operations, "spellings": spellings,
        "benchmarks": ("a", "b"), "validation_problems": problems, "validation_seed": 7,
    }  # fmt: skip
    return make_task(TaskData.model_validate(data))


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(str(tensor.tolist()).encode()).hexdigest()[:16]


def slow_trace(task: Task, prompt: list[int], slips: list[int]) -> tuple[list[int], list[int]]:
    """A worked response and the graded values, with Python's integers; `slips[i]` is added to the result of step i."""
    modulus, start = task.data.modulus, task.tokenizer.operator
    if task.data.task == "addition":
        carry, trace = 0, []
        for step, slip in enumerate(slips):
            total = prompt[2 * step] % modulus + prompt[2 * step + 1] % modulus + carry
            carry = total // modulus
            trace += [(total + slip) % modulus, carry]
        return [*trace, task.tokenizer.eos], [*trace[::2], carry]
    state, trace = prompt[0] % modulus, []
    for step, slip in enumerate(slips):
        symbol, operand = OPERATORS[prompt[1 + 2 * step] - start], prompt[2 + 2 * step] % modulus
        state = {"+": state + operand, "-": state - operand, "*": state * operand}[symbol] % modulus
        state = (state + slip) % modulus
        trace += [prompt[1 + 2 * step], operand, state]
    return [*trace, task.tokenizer.eos], [state]


def by_value(task: Task, ids: Tensor) -> list[list[int]]:
    """Rows of ids with every number in its first spelling."""
    return torch.where(ids < task.tokenizer.operator, ids % task.data.modulus, ids).tolist()


def test_chain_with_one_spelling_draws_what_it_always_drew() -> None:
    """Golden values of the code before there were tasks and spellings; conf/data/chain.yaml rests on them."""
    task, draws = make_task(compose([]).run.data), seeded(11)
    sets = validation_sets(task)
    held_out = {key for problems in sets.values() for key in problems.identities()}
    problems = sample_training_problems(task, 64, draws, held_out)
    traces = task.noisy_traces(problems, 0.25, draws)
    assert (digest(problems.prompts), digest(traces)) == ("948761357a18eb80", "494c4e2373abc59b")
    assert {name: (digest(p.prompts), digest(p.answers[:, 0])) for name, p in sets.items()} == {
        "chain24": ("4f04d14548045fd2", "22bbf5c7222ede26"),
        "chain25": ("f564ca54961978ee", "12aeaaf5590e2ece"),
        "chain26": ("831074159299da49", "39bdec9ff8b27de9"),
    }
    assert torch.rand(1, generator=draws).item() == 0.8405357599258423


def test_the_symbols_of_a_vocabulary() -> None:
    tokenizer = Tokenizer(10, 100)
    assert (tokenizer.operator, tokenizer.vocabulary) == (1000, 1006)
    names = tokenizer.names([7, 1000, 27, 1003, 999, 1004, 1005])
    assert " ".join(names) == "7 + 7_2 = 9_99 <eos> "  # nothing for padding
    assert tokenizer.values(torch.tensor([7, 27, 999, 1000, 1005])).tolist() == [7, 7, 9, -1, -1]


def test_spellings_follow_zipfs_law() -> None:
    spellings, numbers = 20, torch.full((100_000, 2), 3)
    ids = Tokenizer(10, spellings).spell(numbers, seeded(0))
    assert ids.remainder(10).equal(numbers)
    weights = 1 / torch.arange(1, spellings + 1)
    check_frequencies(ids.flatten() // 10, (weights / weights.sum()).tolist())


@pytest.mark.parametrize("name", NAMES)
def test_select_and_cat_keep_rows_together(name: str) -> None:
    problems = task_of(name, spellings=5).sample(4, seeded(0))
    for field in ("values", "answers", "prompts"):
        rows = getattr(problems, field)
        both = Problems.cat([problems, problems.select(torch.tensor([3, 1]))])
        assert getattr(both, field).equal(rows[[0, 1, 2, 3, 3, 1]])
    assert len(set(problems.identities())) == 4


@pytest.mark.parametrize("name", NAMES)
def test_validation_sets_are_disjoint_fixed_and_never_trained_on(name: str) -> None:
    """Half of a small space is held out; other spellings of it are too."""
    task = task_of(name, modulus=5, operations=1, spellings=4, problems=6)
    sets, again = validation_sets(task), validation_sets(task)
    keys = [key for problems in sets.values() for key in problems.identities()]
    assert len(keys) == len(set(keys)) == 12
    assert all(sets[name].prompts.equal(again[name].prompts) for name in sets)
    trained = set(sample_training_problems(task, 2000, seeded(0), set(keys)).identities())
    assert not trained & set(keys)
    assert len(trained.union(keys)) == task.data.problem_space


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    modulus=st.integers(2, 1000),
    operations=st.integers(1, 127),
    spellings=st.integers(1, 100),
    seed=st.integers(0, 1000),
)
def test_a_noiseless_trace_is_right(
    name: str, modulus: int, operations: int, spellings: int, seed: int
) -> None:
    """It is the slow reference's by value, has the lengths that the config foretells, and earns the reward."""
    if name == "chain" and modulus == 2 and operations == 1:
        operations = 2  # the two validation problems would be more than half of the space
    task, draws = task_of(name, modulus, operations, spellings), seeded(seed)
    problems = task.sample(3, draws)
    traces = task.noisy_traces(problems, 0.0, draws)
    assert problems.prompts.shape == (3, task.data.prompt_length)
    assert traces.shape == (3, task.data.worked_length)
    assert min(traces.min(), problems.prompts.min()) >= 0
    assert max(traces.max(), problems.prompts.max()) < task.tokenizer.pad
    slow = [slow_trace(task, row, [0] * operations) for row in problems.prompts.tolist()]
    assert by_value(task, traces) == [trace for trace, _ in slow]
    assert problems.answers.tolist() == [answers for _, answers in slow]
    lengths = torch.full((3,), task.data.worked_length)
    assert task.rewards(traces, lengths, problems.answers).tolist() == [1.0] * 3
    assert task.answers(traces, lengths).tolist() == [answers for _, answers in slow]


def test_addition_slips_where_a_carry_passes_on_at_the_rate_asked_and_follows_the_wrong_carry() -> None:
    task, noise, n = task_of("addition", operations=12, spellings=3), 0.3, 2000
    problems = task.sample(n, seeded(0))
    traces = by_value(task, task.noisy_traces(problems, noise, seeded(1)))
    kinds: Counter[tuple[int, bool]] = Counter()
    hard = 0
    for values, trace in zip(problems.values.tolist(), traces, strict=True):
        carry = 0
        for i in range(12):
            total = values[2 * i] + values[2 * i + 1] + carry  # from the written carry, right or wrong
            digit, carry = trace[2 * i], trace[2 * i + 1]
            kind = ((digit - total) % 10, carry != total // 10)
            passes_on = values[2 * i] + values[2 * i + 1] == 9
            assert passes_on or kind == (0, False)
            hard += passes_on
            kinds[kind] += 1
    assert set(kinds) == {(0, False), (1, False), (0, True)}
    tolerance = 5 * math.sqrt(noise / 2 / hard)
    for kind in ((1, False), (0, True)):
        assert abs(kinds[kind] / hard - noise / 2) < tolerance


# Task, operations and values: 1 + 3; 7 + 5 = 12 and 4 + 5 + 1 = 10.
CHAIN, ADDITION = ("chain", 1, [1, 0, 3]), ("addition", 2, [7, 5, 4, 5])


@pytest.mark.parametrize(
    "problem, response, length, expected",
    [
        (CHAIN, [14, 24, 25], 2, 1.0),  # the other spelling of 4
        (CHAIN, [9, 4, 24], 3, 1.0),
        (CHAIN, [4, 24, 4], 3, 0.0),  # ran on after its end, or truncated
        (CHAIN, [24, 25, 25], 1, 0.0),  # empty
        (CHAIN, [20, 24, 25], 2, 0.0),  # an operator is no number
        (ADDITION, [12, 1, 10, 11, 24], 5, 1.0),  # 7 + 5 = 12; 4 + 5 + 1 = 10, in other spellings
        (ADDITION, [2, 0, 0, 1, 24], 5, 1.0),  # carries in between are not graded
        (ADDITION, [2, 1, 0, 1, 24, 25, 25], 5, 1.0),
        (ADDITION, [2, 1, 1, 1, 24], 5, 0.0),
        (ADDITION, [2, 1, 0, 0, 24], 5, 0.0),  # the last carry is
        (ADDITION, [2, 1, 0, 1], 4, 0.0),  # truncated, no room
        (ADDITION, [2, 1, 0, 1, 1], 5, 0.0),  # as long as a whole one, without its end
        (ADDITION, [2, 1, 0, 1, 24, 1, 24], 7, 0.0),  # too long
        (ADDITION, [2, 1, 0, 21, 24], 5, 0.0),  # an operator is no number
    ],
)
def test_the_reward_of_a_response(
    problem: tuple[str, int, list[int]], response: list[int], length: int, expected: float
) -> None:
    name, operations, values = problem
    task = task_of(name, operations=operations, spellings=2)
    assert (task.tokenizer.eos, task.tokenizer.pad) == (24, 25)
    problems = task.write(torch.tensor([values]), seeded(0))
    given = torch.tensor([response]), torch.tensor([length])
    assert task.rewards(*given, problems.answers).tolist() == [expected]
    assert (answer_text(task.answers(*given)[0]) == answer_text(problems.answers[0])) == bool(expected)


def test_the_registry_and_the_config_know_the_same_tasks() -> None:
    assert set(TASKS) == set(get_args(TaskData.model_fields["task"].annotation))


def test_the_warm_starts_loss_is_the_mean_over_spellings() -> None:
    """It equals the cross-entropy averaged over every way to spell the numbers of the response."""
    task = task_of("chain", modulus=3, operations=1, spellings=4)
    torch.manual_seed(0)
    architecture = tiny().model.architecture
    model = Transformer(architecture, task.tokenizer.vocabulary, task.data.prompt_length + 4)
    model.embedding.weight.data.mul_(5)
    problems = task.sample(2, seeded(0))
    response = task.noisy_traces(problems, 0.0, seeded(0))
    tokens = torch.cat([problems.prompts, response], dim=1)
    loss = _imitation_loss(model, tokens, response, task.tokenizer)
    logp = model(tokens[:, :-1])[:, -4:].log_softmax(-1)
    expected, shares = torch.tensor(0.0), [12 / 25, 6 / 25, 4 / 25, 3 / 25]
    for row in range(2):
        for position, symbol in enumerate(response[row].tolist()):
            number = symbol < task.tokenizer.operator
            ways = [(symbol % 3 + 3 * i, p) for i, p in enumerate(shares)] if number else [(symbol, 1.0)]
            expected = expected - sum(p * logp[row, position, way] for way, p in ways) / 8
    torch.testing.assert_close(loss, expected)


def test_spellings_of_a_number_begin_close_together() -> None:
    for spellings in (1, 4):
        tokenizer = Tokenizer(5, spellings)
        torch.manual_seed(0)
        model = Transformer(tiny().model.architecture, tokenizer.vocabulary, 8)
        before, after = model.embedding.weight.clone(), model.embedding.weight
        _tie_spellings(model, tokenizer)
        moved = (after != before).any(1).nonzero()[:, 0].tolist()
        assert moved == list(range(5, tokenizer.operator))
        nearest = torch.cdist(after[: tokenizer.operator], after[:5]).argmin(1)
        assert nearest.equal(torch.arange(5).repeat(spellings))
