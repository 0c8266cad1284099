"""The embedded core: the model against itself without a cache, sampling, learning."""

import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cppo_lab import schema
from cppo_lab.core_records import Resources, load_core
from cppo_lab.cores.mini.model import Rollout, Transformer, draw_nucleus, sample
from cppo_lab.cores.mini.tasks import make_task
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.cores.mini.warm_start import (
    TEST_EVERY,
    NotLearned,
    _until_learned,
    train_warm_start,
)
from cppo_lab.rules import RULES
from cppo_lab.schema import Outcome
from cppo_lab.spec import Architecture, RunSpec, SyntheticModel, TaskData
from cppo_lab.spec.run import ANNEAL_STEPS
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.cores.kills import Killed
from tests.maths.maths_batches import CONSTANTS

ARCH = Architecture(layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=48)
DATA = TaskData(
    name="chain", task="chain", modulus=10, operations=3, spellings=1, benchmarks=("a", "b"),
    validation_problems=20, validation_seed=7,
)  # fmt: skip
TASK = make_task(DATA)
TOKENIZER = TASK.tokenizer


Rows = list[tuple[int, dict[str, float]]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def untrained(context: int) -> Transformer:
    """Larger than the initialisation: a flat softmax would hide faults."""
    torch.manual_seed(0)
    model = Transformer(ARCH, TOKENIZER.vocabulary, context)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model


@pytest.fixture
def model() -> Transformer:
    return untrained(64)


def joined_logits(model: Transformer, rollout: Rollout) -> torch.Tensor:
    """Logits at every response token [B, T, V], from whole sequences, prompt and response in one row."""
    prompts = rollout.prompts[rollout.group]
    tokens = torch.cat([prompts, rollout.responses], dim=1)[:, :-1]
    return model(tokens)[:, prompts.shape[1] - 1 :]


@pytest.mark.parametrize("longest", [9, 1])
def test_shared_prompts_equal_whole_sequences(model: Transformer, longest: int) -> None:
    """Values and gradients; responses in any order."""
    generator = seeded(4)
    prompts = torch.randint(0, 10, (3, 7), generator=generator)
    rollout = sample(
        model, prompts, TOKENIZER, copies=4, max_response_length=longest, temperature=1.0, top_p=1.0,
        generator=generator,
    )  # fmt: skip
    rollout = rollout.select(torch.tensor([11, 0, 5, 2, 9]))
    model.double()
    weight = torch.randn(5, rollout.responses.shape[1], TOKENIZER.vocabulary, generator=generator).double()
    ways = []
    for logits in (rollout.logits(model), joined_logits(model, rollout)):
        gradients = torch.autograd.grad((logits * weight).sum(), [*model.parameters()])
        ways.append([logits, *gradients])
    torch.testing.assert_close(*ways, atol=1e-9, rtol=1e-9)


def nucleus(probabilities: list[float], top_p: float) -> list[float]:
    """The truncated distribution by its definition: most likely tokens until their mass reaches `top_p`."""
    kept, mass = [0.0] * len(probabilities), 0.0
    for token in sorted(range(len(probabilities)), key=lambda i: -probabilities[i]):
        if mass >= top_p:
            break
        kept[token] = probabilities[token]
        mass += probabilities[token]
    return [p / mass for p in kept]


def check_frequencies(tokens: torch.Tensor, expected: list[float]) -> None:
    """Draws against probabilities: within 5 standard errors each, and nothing that cannot be."""
    n, law = len(tokens), torch.tensor(expected)
    seen = torch.bincount(tokens, minlength=len(law)) / n
    assert (seen[law == 0] == 0).all()
    assert ((seen - law).abs() <= 5 * (law * (1 - law) / n).sqrt() + 2 / n).all()


@pytest.mark.parametrize("copies", [1, 4])
def test_what_is_recorded_of_a_rollout(model: Transformer, copies: int) -> None:
    """On policy, the sampler's log-probabilities, from its cache, and those of whole sequences agree to float32
    rounding; copies of a prompt are neighbours and differ; a row ends at its end token.
    """
    prompts = TASK.sample(16, seeded(3)).prompts
    rollout = sample(
        model, prompts, TOKENIZER, copies=copies, max_response_length=12, temperature=0.8, top_p=1.0,
        generator=seeded(4), top_k=TOKENIZER.vocabulary,
    )  # fmt: skip
    valid = rollout.valid()
    assert (rollout.responses[valid] == TOKENIZER.pad).any()  # a real token like any other
    logits = joined_logits(model, rollout) / 0.8
    logp = logits.log_softmax(-1).gather(-1, rollout.responses[..., None])[..., 0]
    assert valid.sum() > 16
    assert (logp - rollout.logp)[valid].abs().max() < 5e-5
    assert torch.equal(rollout.group, torch.arange(16).repeat_interleave(copies))
    assert copies == 1 or len({tuple(row) for row in rollout.responses[:copies].tolist()}) > 1
    for row, length in zip(rollout.responses.tolist(), rollout.lengths.tolist(), strict=True):
        assert length == (row.index(TOKENIZER.eos) + 1 if TOKENIZER.eos in row else 12)
        assert all(token == TOKENIZER.pad for token in row[length:])


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.05])
def test_frequencies_follow_the_truncated_softmax(model: Transformer, top_p: float) -> None:
    prompts = TASK.sample(1, seeded(5)).prompts
    rollout = sample(
        model, prompts, TOKENIZER, copies=20_000, max_response_length=2, temperature=0.7, top_p=top_p,
        generator=seeded(6),
    )  # fmt: skip
    law = (model(prompts)[:, -1] / 0.7).softmax(-1)[0].tolist()
    check_frequencies(rollout.responses[:, 0], nucleus(law, top_p))
    assert (0 in nucleus(law, top_p)) == (top_p < 1)


def test_a_share_that_rounds_to_nothing_leaves_the_likeliest() -> None:
    assert draw_nucleus(torch.tensor([[0.3, 0.7]] * 100), 1e-300, seeded(1)).tolist() == [1] * 100


def without_times(row: Mapping[str, float]) -> dict[str, float]:
    """All that must not differ between two runs with one seed."""
    return {name: value for name, value in row.items() if not name.startswith("perf/")}


class ListSink:
    """Keeps what a core logs; dies when step `kill_at` is to be logged."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.rows: Rows = []
        self.artifacts: dict[str, Mapping[str, Any]] = {}
        self.tags: dict[str, str] = {}
        self.began: list[int | None] = []

    def begin(self, step: int | None) -> None:
        self.began.append(step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.kill_at:
            raise Killed
        self.rows.append((step, dict(metrics)))

    def tag(self, name: str, value: str) -> None:
        self.tags[name] = value

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        self.artifacts[name] = values

    def numbers(self) -> Rows:
        return [(step, without_times(row)) for step, row in self.rows]


DECOUPLED = (
    "rollout.correction=decoupled", "rollout.rollout_is=token", "rollout.rollout_is_threshold=1.01",
    "rollout.rollout_rs=token_k1", "rollout.rollout_rs_threshold=1.02",
)  # fmt: skip


@cache
def tiny(*overrides: str) -> RunSpec:
    return compose([*TINY, *overrides]).run


def trainer_of(folder: Path, *overrides: str, **given: Any) -> Trainer:
    """Of a tiny run, which has its warm start in `folder`."""
    return Trainer(tiny(*overrides), Resources(folder, folder, device="cpu", **given))


def started(spec: RunSpec, seed: int = 0, **settings: Any) -> SyntheticModel:
    """The model of a run with another warm start."""
    warm_start = spec.model.warm_start.model_copy(update=settings)
    return spec.model.model_copy(update={"warm_start": warm_start}).for_seed(seed)


def attempt(
    spec: RunSpec, folder: Path, sink: Any = None, shared: Path | None = None, **given: Any
) -> tuple[Any, Outcome]:
    """Train a run in its folder; runs share the one above it, if no other is given."""
    folder.mkdir(exist_ok=True)
    resources, sink = Resources(shared or folder.parent, folder, device="cpu", **given), sink or ListSink()
    return sink, load_core(spec.core)(spec, sink, resources)


def train_tiny(folder: Path, *overrides: str, **sections: Any) -> Rows:
    """The metrics of a fresh run, with other sections if given; `folder` holds the warm start that runs share."""
    spec = tiny(*overrides)
    spec = type(spec).model_validate(spec.model_dump(exclude_none=True) | sections)
    return attempt(spec, Path(tempfile.mkdtemp(dir=folder)))[0].numbers()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose warm start is made by the first run in it."""
    return tmp_path_factory.mktemp("shared")


TOPK = {"estimator": "topk", "measure": "kl", "k": 4, "convention": "union"}
KINDS = {rule.needs: name for name, rule in RULES.items()}.values()  # one of the rules that need the same


@pytest.mark.parametrize(
    "rule, divergence",
    [
        *((name, TOPK) for name in KINDS),
        *(("pdm", {"estimator": part, "measure": "kl"}) for part in ("binary", "exact")),
        *(("trm_max", {"estimator": "sample", "measure": measure}) for measure in ("k2", "k3")),
    ],
)
def test_every_kind_of_rule_trains_and_speaks_the_schema(
    shared: Path, rule: str, divergence: dict[str, Any]
) -> None:
    """That of each rule its statistics are known, and finite: tests/maths/test_rules.py."""
    constants = {"name": rule, **CONSTANTS[rule]}
    rows = train_tiny(shared, "training.t_stop=2", rule=constants, divergence=divergence)
    assert [step for step, _ in rows] == [0, 1, 2]
    for _, metrics in rows:
        assert all(map(schema.is_known_metric, metrics)) and all(map(math.isfinite, metrics.values()))
    assert {"val/chain24/avg_at_16", "val/mean/avg_at_16"} <= set(rows[2][1]) & set(rows[0][1])
    assert "rule/masked_fraction" in rows[1][1] | rows[2][1]


def test_a_centred_loss_trains_another_policy(shared: Path) -> None:
    """From a mu that is not pi; from the same, what is subtracted is the mean score of pi, which is 0."""
    kind = ("training.t_stop=4", "rollout.precision=bfloat16")
    plain, centred = (
        train_tiny(shared, *kind, "optim.learning_rate=0.01", f"objective.centering={choice}")[2][1]
        for choice in ("false", "true")
    )
    assert math.isfinite(centred["train/loss"])
    assert centred["train/grad_norm"] != pytest.approx(plain["train/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("rule, origin", [("cppo", "mu"), ("pdm", "old")])
def test_three_policies_of_which_two_are_one_train_to_the_bit_as_two(
    shared: Path, rule: str, origin: str
) -> None:
    """mu samples with the weights of pi_old, in its arithmetic: it is pi_old, and every weight is 1."""
    kind = (f"rule={rule}", "optim.learning_rate=0.01", "training.t_stop=4")
    plain = train_tiny(shared, *kind)
    rows = train_tiny(shared, *kind, *DECOUPLED, f"divergence.origin={origin}")
    weights = [
        (row.pop("rule/importance_weight_mean"), row.pop("rule/rejected_fraction"))
        for _, row in rows
        if "rule/ratio_mean" in row  # not of a batch without a learning signal
    ]
    assert rows == plain and set(weights) == {(1.0, 0.0)}


@pytest.mark.parametrize("origin", ["mu", "old"])
def test_pi_old_is_the_policy_before_the_updates_and_not_the_stale_mu(shared: Path, origin: str) -> None:
    """The ratio is to it, D_t and its direction are from it or from mu. What it is, and that pi_old / mu is the weight:
    verl/test_engine.py.
    """
    kind = ("rule=dppo", "rule.delta=0.05", "divergence.k=4", "rollout.staleness=1", *DECOUPLED)
    trainer = trainer_of(shared, *kind, f"divergence.origin={origin}")
    generator = seeded(2)

    def moved() -> None:
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter += 0.03 * torch.randn(parameter.shape, generator=generator)

    trainer.collect()
    moved()
    batch = trainer.collect()
    rollout, worth = batch.rollout, torch.randn(len(batch.keep), generator=generator)
    valid = rollout.valid()
    old = trainer.recorded(rollout)
    moved()
    assert float((old.logp - rollout.logp)[valid].abs().max()) > 0.1
    result, start = trainer.objective(rollout, worth, None, old), old if origin == "old" else rollout
    seen = result.seen
    keep = (seen.divergence <= 0.05) | (worth[:, None] * (seen.logp - start.logp) <= 0)
    assert torch.equal(result.output.keep.bool(), keep & valid) and 0 < keep[valid].sum() < valid.sum()
    ratios = (seen.logp - old.logp)[valid].exp()
    torch.testing.assert_close(result.output.stats["ratio"], ratios.sum(), rtol=1e-5, atol=0)
    metrics = trainer.update(replace(batch, advantages=worth, keep=torch.ones_like(batch.keep)))
    assert all(map(schema.is_known_metric, metrics))
    assert (metrics["rule/divergence_before_update_mean"] < 1e-6) == (origin == "old")


def test_the_digest_tells_which_start_a_run_has(shared: Path) -> None:
    """Each seed begins from its own, whatever the rule; the model, its seed and the task decide alone."""
    same, others = (
        ["", "seed=1 model.warm_start.seed=0", "model.warm_start.seed=0", "rule=grpo optim.learning_rate=0.1"],
        ["seed=1", "data.operations=1", "model.warm_start.steps=21"],
    )  # fmt: skip
    starts = {}
    for text in (*same, *others):
        trainer = trainer_of(shared, *text.split())
        weights = torch.cat([weight.flatten() for weight in trainer.weights().values()])
        starts[text] = trainer.tags[schema.TAG_WARM_START], hash(tuple(weights.tolist()))
    assert {starts[text] for text in same} == {starts[""]}
    for part in zip(starts[""], *(starts[text] for text in others), strict=True):
        assert len(set(part)) == 4


def test_it_ends_once_it_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on other problems: the most likely token of each step."""
    monkeypatch.setattr("cppo_lab.cores.mini.warm_start.ANNEAL_STEPS", TEST_EVERY)
    run = tiny("data.operations=1", "data.modulus=5")
    task, draws, steps = make_task(run.data), seeded(7), []
    torch.manual_seed(0)
    model = Transformer(run.model.architecture, task.tokenizer.vocabulary, 32)
    made = started(run, steps=3000, batch=32, learning_rate=0.01, step_noise=0.1, target_accuracy=0.8)
    train_warm_start(made, run.data, model, lambda _, step=0, of=0: steps.append(step))
    assert steps == list(range(len(steps))) and TEST_EVERY < len(steps) < 3000
    assert len(steps) % TEST_EVERY == 0
    problems = task.sample(50, draws)
    tokens = torch.cat([problems.prompts, traces := task.noisy_traces(problems, 0.0, draws)], dim=1)
    said = model(tokens[:, :-1])[:, -traces.shape[1] :].argmax(-1)
    assert (said == traces).double().mean() > 0.78


def test_rates_of_a_warm_start_with_a_target(tiny_spec: RunSpec) -> None:
    made = started(tiny_spec, seed=3, steps=1000, learning_rate=0.5, target_accuracy=0.9)
    progress = []

    def rates(*accuracies: float) -> list[float]:
        optimizer, measured = torch.optim.SGD([torch.zeros(1)]), iter(accuracies)
        found = []
        for report in _until_learned(made, optimizer, lambda: next(measured)):
            progress.append(report)
            found.append(optimizer.param_groups[0]["lr"])
        return found

    found = rates(0.1, 0.256, 0.1, 0.1, 0.9)  # measured at steps 0, 50, ..., 200
    assert [progress[step] for step in (0, 50, 200, -1)] == [
        ("warm start, 10 % right (until 90 %), step", 0, 1000),
        ("warm start, 26 % right (until 90 %), step", 50, 1000),
        ("warm start, annealing, step", 200, 500),
        ("warm start, annealing, step", 499, 500),
    ]
    assert len(found) == 200 + ANNEAL_STEPS
    assert found[:100] == pytest.approx([0.5 * (step + 1) / 100 for step in range(100)])
    assert found[100:201] == pytest.approx([0.5] * 101)
    assert found[200:] == pytest.approx([0.5 * (1 - step / ANNEAL_STEPS) for step in range(ANNEAL_STEPS)])
    assert len(rates(*[0.0] * 14, 0.95)) == 1000  # the last moment at which the fall still fits
    with pytest.raises(
        NotLearned, match=r"seed 3, had 12\.3% .* after 700 steps.*target_accuracy=0\.9: raise"
    ):
        rates(*[0.123] * 15)


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11])
def test_a_short_warm_start_has_a_schedule(tiny_spec: RunSpec, steps: int) -> None:
    made = started(tiny_spec, steps=steps, batch=2)
    model = Transformer(tiny_spec.model.architecture, make_task(tiny_spec.data).tokenizer.vocabulary, 32)
    train_warm_start(made, tiny_spec.data, model)
    assert all(part.isfinite().all() for part in model.parameters())


# -- The metrics between sampler and trainer ---------------------------------------------------------------------------

ERROR = "token_mult_prob_error"


def of_mismatch(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(schema.MISMATCH)}


def test_a_lower_precision_of_mu_is_a_gap_before_the_update(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "rollout.precision=bfloat16")
    batch = trainer.collect()
    metrics = trainer.update(replace(batch, keep=torch.ones_like(batch.keep)))
    assert 1.0001 < metrics[schema.mismatch_metric(ERROR, before_update=True)] < 1.03


def test_one_precision_and_the_same_weights_leave_rounding(tmp_path: Path) -> None:
    """Every metric of the schema is logged, of both states and of each third. Switched off, they are left out and
    change nothing.
    """
    trainer, off = trainer_of(tmp_path), trainer_of(tmp_path, mismatch=False)
    batch = trainer.collect()
    trainer.collect = lambda: batch  # type: ignore[method-assign]
    metrics = trainer.step()
    without = off.step()
    assert without_times(without).items() <= metrics.items() and not of_mismatch(without)
    assert torch.equal(off.model.embedding.weight, trainer.model.embedding.weight)
    before, after = (schema.mismatch_metric(ERROR, before_update=state) for state in (True, False))
    assert metrics[before] == pytest.approx(1, abs=1e-5)
    assert metrics[after] > 1  # later minibatches are off-policy
    assert metrics[schema.DIVERGENCE_BEFORE] < 1e-5
    assert metrics[schema.DIVERGENCE_BEFORE_P90] == 0
    plain = [name.name for name in schema.METRICS if name.name.startswith(schema.MISMATCH)]
    assert of_mismatch(metrics).keys() == {
        schema.mismatch_metric(name.removeprefix(schema.MISMATCH), third, before_update=state)
        for name in plain
        for third in ("", *schema.THIRDS)
        for state in (False, True)
    }
    lengths, longest = batch.rollout.lengths, trainer.spec.rollout.max_response_length
    assert metrics["train/truncated_share"] == pytest.approx(float((lengths == longest).double().mean()))
