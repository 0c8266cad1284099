"""The loop of the embedded cores: a broken run continues with the numbers of an unbroken one, a collapsed one ends."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.core_records import BEST_MODEL, CHECKPOINT
from cppo_lab.cores.checkpoint import load_checkpoint, load_whole, read_checkpoint, same_form, save_checkpoint
from cppo_lab.cores.exact.trainer import Learner, step_together
from cppo_lab.cores.loop import AdamW, SteppedTrainer
from cppo_lab.cores.mini import trainer as trainer_module
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.cores.mini.warm_start import weights_digest
from cppo_lab.errors import NotFinite
from cppo_lab.schema import Outcome, collapse_reason
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY, python
from tests.cores.exact_specs import DISTURBED, DPPO, SHUFFLED, exact_run
from tests.cores.kills import killed_at_each
from tests.cores.test_mini import ListSink, attempt, seeded, tiny, trainer_of, without_times

ROOT = Path(__file__).parents[2]
MAKER = "torch on cpu"
LONGER = "training.t_stop=6"


class KeepingSink(ListSink):
    """Keeps a copy of the run's folder as a kill before and after each step is logged would leave it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.left: dict[str, dict[str, bytes]] = {}  # the moment -> files by name

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for moment in (f"before {step}", f"after {step}"):
            self.left[moment] = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        super().log(step, metrics)


ALONG = {"rule": DPPO, "learning_rate": 0.05, "match": "scale"}
RUNS: dict[str, RunSpec] = {
    "cppo": tiny(LONGER, "rule=cppo"),
    "shuffled, stale": tiny(LONGER, f"rule={SHUFFLED['name']}", "rollout.staleness=2"),
    "bfloat16": tiny(LONGER, "rule=grpo", "rollout.precision=bfloat16"),
    "exact": exact_run(training={"t_stop": 6}),
    "exact, disturbed, shuffled": exact_run(**DISTURBED, rule=SHUFFLED, training={"t_stop": 6}),
    "exact, measured along another": exact_run(along=ALONG, training={"t_stop": 6}),
}


def test_a_state_of_another_form_and_a_file_that_is_none(tmp_path: Path) -> None:
    like = {"a": torch.zeros(2)}
    assert same_form({"a": torch.ones(2)}, like)
    for other in ([], {"b": torch.zeros(2)}, {"a": 5}, {"a": torch.zeros(3)}, {"a": torch.zeros(2).long()}):
        assert not same_form(other, like)
    with pytest.raises(ValueError, match="damaged"):
        load_whole(tmp_path)


@pytest.mark.parametrize("name", RUNS)
def test_killed_at_any_step_it_continues_with_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Many moments leave the same files: what comes of these is looked at once."""
    spec = RUNS[name]
    unbroken = KeepingSink(tmp_path / "unbroken")
    assert attempt(spec, tmp_path / "unbroken", unbroken)[1] == Outcome(schema.DONE, 6)
    assert len(unbroken.left) == 2 * 7 and "diagnostics/positions.json" in unbroken.artifacts
    different = {hash(tuple(sorted(files.items()))): moment for moment, files in unbroken.left.items()}
    begun = []
    for moment in different.values():
        (folder := tmp_path / moment).mkdir()
        for file, content in unbroken.left[moment].items():
            (folder / file).write_bytes(content)
        resumed, outcome = attempt(spec, folder)
        assert resumed.numbers() == unbroken.numbers(), moment
        assert resumed.artifacts == unbroken.artifacts
        assert outcome == Outcome(schema.DONE, 6)
        begun += resumed.began
    assert begun == [None, 2, 4]
    assert capsys.readouterr().err == ""  # no checkpoint is missed or refused


def test_killed_at_any_file_it_keeps_the_best_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each operation on files: what is kept is of the best step, to the bit."""
    few = ("training.t_stop=3", "validation.every=1", "validation.samples=2", "optim.learning_rate=0.003")
    spec, validate, weights = tiny(*few), Trainer.validate, {}

    def seen(self: Trainer) -> dict[str, float]:
        weights[self.steps] = weights_digest(self.model.state_dict())
        return validate(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validate", seen)
        unbroken, _ = attempt(spec, tmp_path / "unbroken")
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    scores = {step: row[name] for step, row in unbroken.rows if step and name in row}
    best = 2
    assert scores[1] == scores[best] > scores[3]  # the later of equals, and not the last
    assert weights[1] != weights[best]
    for folder, _ in killed_at_each(monkeypatch, tmp_path, lambda folder: attempt(spec, folder)):
        attempt(spec, folder)
        kept = read_checkpoint(folder / BEST_MODEL, spec.run_id)
        assert [step for step, _ in kept["history"]] == [best]
        assert weights_digest(kept["trainer"]["model"]) == weights[best]
    assert int(folder.name) >= 2 * (3 + 1)  # a checkpoint at each validation, and at least one best


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> KeepingSink:
    """Of an unbroken run; its folder has its last checkpoint, the one above it the warm start."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return attempt(RUNS["cppo"], folder, KeepingSink(folder))[0]


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    tmp_path: Path, whole: KeepingSink, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("cppo_lab.files.os.fsync", Mock(side_effect=full))
    sink, outcome = attempt(RUNS["cppo"], tmp_path / "run", shared=whole.folder.parent)
    assert (sink.numbers(), outcome.status) == (whole.numbers(), schema.DONE)
    assert "could not be written: [Errno 28] No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    "run_id, maker, said",
    [
        ("a", "torch on cuda", "made by torch on cuda, this is torch on cpu"),
        ("b", MAKER, "not a checkpoint of run a"),
    ],
)
def test_a_checkpoint_of_another_making_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_id: str, maker: str, said: str
) -> None:
    path = tmp_path / CHECKPOINT
    save_checkpoint(path, run_id, maker, [], {})
    assert load_checkpoint(path, "a", MAKER) is None
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda kept: kept.pop("history"), "KeyError: 'history'"),
        (lambda kept: kept["history"].pop(), "its rows are not those of its steps"),
        (lambda kept: kept["trainer"].pop("diagnostics"), "KeyError: 'diagnostics'"),
        (
            lambda kept: kept["trainer"].update(shuffling=torch.zeros(3, dtype=torch.uint8)),
            "RuntimeError",
        ),
    ],
)
def test_one_that_does_not_fit_starts_over(
    tmp_path: Path,
    whole: KeepingSink,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Any], object],
    said: str,
) -> None:
    kept = torch.load(whole.folder / CHECKPOINT, weights_only=True)
    change(kept)
    torch.save(kept, tmp_path / CHECKPOINT)
    again, outcome = attempt(RUNS["cppo"], tmp_path, shared=whole.folder.parent)
    assert (again.began, again.numbers()) == ([None], whole.numbers())
    assert outcome == Outcome(schema.DONE, 6)
    assert "is ignored, training starts over" in (err := capsys.readouterr().err) and said in err


@pytest.mark.parametrize(
    "scores, collapsed",
    [
        ([0.2, 0.5, 0.9, 0.3, 0.3], True),
        ([0.2, 0.5, 0.9, 0.3, 0.6], False),  # one bad validation
        ([0.2, 0.5, 0.9, 0.37, 0.37], False),  # not far enough
        ([0.2, 0.0, 0.0], True),
        ([0.04, 0.0, 0.0, 0.0], False),  # nothing to lose
        ([0.9, 0.3, 0.5, 0.3], False),  # not in a row
        ([], False),
    ],
)
def test_scores_that_have_collapsed(scores: list[float], collapsed: bool) -> None:
    assert bool(collapse_reason(scores, share=0.4, patience=2)) == collapsed


def test_share_finds_the_papers_collapse_and_no_other() -> None:
    """The paper's curve ends at its first low point: only patience 1 can find it."""
    share = compose([]).run.training.collapse_share
    curves = pd.read_csv(ROOT / "reports/paper/validation_curves.csv")
    means = curves.groupby(["model", "method", "step"])["avg_at_16"].mean()
    curves = means.groupby(level=["model", "method"]).agg(list)
    collapsed = curves.map(lambda scores: bool(collapse_reason(scores, share, patience=1)))
    assert [*curves[collapsed].index] == [("Qwen3-30B-A3B-Base", "cispo")]


def test_a_collapsed_run_ends_early_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.6, 0.1, 0.1, 0.1])
    name = schema.validation_metric(schema.MEAN)
    monkeypatch.setattr(trainer_module.Trainer, "validate", lambda self: {name: next(scores)})
    spec = tiny("training.t_stop=20")
    sink, outcome = attempt(spec, tmp_path / "run")
    assert (outcome.status, outcome.step) == (schema.COLLAPSED, 6)
    assert [step for step, _ in sink.rows] == list(range(7))
    assert "10.0 % is below 0.4 x its best 60.0 %" in outcome.reason
    # Killed before its end was recorded, it is collapsed still, without another step.
    again, same = attempt(spec, tmp_path / "run")
    assert (same, again.numbers()) == (outcome, sink.numbers())


@pytest.mark.parametrize(
    "change, said",
    [
        (
            lambda _, model: model.embedding.weight.register_hook(lambda g: g * math.nan),
            "gradient norm is nan",
        ),
        (lambda _, model: [p.data.mul_(1e17) for p in model.parameters()], "log-probabilities are not"),
        (lambda batch, _: batch.rollout.logp.sub_(200), "the probability ratio of kept token"),
    ],
)
def test_what_is_not_finite_is_a_collapse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any], object], said: str
) -> None:
    """In the third step of GRPO, which clips a token that is far off only where it is rewarded."""
    spec = tiny("training.t_stop=20", "rule=grpo")
    collect, steps = Trainer.collect, [0]

    def broken(trainer: Trainer) -> Any:
        batch, steps[0] = collect(trainer), steps[0] + 1
        if steps[0] == 3:
            batch.advantages.fill_(-1.0)
            batch.keep.fill_(True)
            change(batch, trainer.model)
        return batch

    monkeypatch.setattr(Trainer, "collect", broken)
    sink, outcome = attempt(spec, tmp_path / "run")
    assert (outcome.status, sink.rows[-1][0]) == (schema.COLLAPSED, 2)
    assert said in outcome.reason and outcome.reason.endswith("at step 3")


@pytest.mark.parametrize(
    "spec", [tiny("batch.minibatch_prompts=8"), exact_run(batch={"minibatch_prompts": 8})]
)
def test_so_are_weights_that_the_last_update_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: RunSpec
) -> None:
    """They would be validated, and at the last step the run would be done."""

    def destroy(trainer: SteppedTrainer, loss: torch.Tensor) -> float:
        trainer.trained[0].data.fill_(math.inf)
        return 1.0

    monkeypatch.setattr(SteppedTrainer, "_descend", destroy)
    _, outcome = attempt(spec, tmp_path / "run")
    assert outcome == Outcome(schema.COLLAPSED, 0, "weights are not finite at step 1")


def test_so_is_a_policy_from_which_nothing_is_learned(tmp_path: Path) -> None:
    """All of its responses are wrong: no loss finds out that its probabilities are not numbers."""
    trainer = trainer_of(tmp_path)
    trainer.model.embedding.weight.data.fill_(math.nan)
    with pytest.raises(NotFinite, match="log-probabilities are not finite"):
        trainer.step()
    whole, broken = (Learner(exact_run(seed=seed)) for seed in (0, 1))
    broken.parameters.data.fill_(math.nan)
    metrics, error = step_together([whole, broken], 1)
    [alone] = step_together([Learner(exact_run())], 1)
    assert isinstance(error, NotFinite) and without_times(metrics) == without_times(alone)


def test_staleness_is_counted_in_rollout_batches(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "rollout.staleness=2")
    before = []
    for step in range(5):
        before.append(trainer.model.embedding.weight.detach().clone())
        used = trainer.policy.current().embedding.weight
        assert torch.equal(used, before[max(0, step - 2)])
        trainer.model.embedding.weight.data.add_(1.0)


def test_shuffled_weights_are_drawn_per_rollout_and_kept_over_its_minibatches(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "rule=cppo_no_prefix_budget_shuffled")
    first, second = trainer.collect(), trainer.collect()
    for row, length in zip(first.permutation.tolist(), first.rollout.lengths.tolist(), strict=True):
        assert sorted(row[:length]) == list(range(length))
    assert not torch.equal(first.permutation, second.permutation)


# -- AdamW -------------------------------------------------------------------------------------------------------------


def trained(
    kind: type[torch.optim.AdamW], start: dict[str, object] | None = None
) -> tuple[Tensor, torch.optim.AdamW]:
    """A cubic's parameters after 20 steps, clipped, under a schedule; `start`: the optimiser's state to begin from."""
    generator = seeded(0)
    parameter = torch.randn(50, generator=generator).requires_grad_()
    optimizer = kind([parameter], lr=1e-2, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    if start is not None:
        optimizer.load_state_dict(start)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=21)
    for _ in range(20):
        optimizer.zero_grad(set_to_none=True)
        (parameter**3).sum().backward()
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        optimizer.step()
        schedule.step()
    return parameter, optimizer


def test_its_steps_and_its_state_are_those_of_torch() -> None:
    """Checkpoints of earlier versions have torch's state."""
    (ours, optimizer), (theirs, other) = trained(AdamW), trained(torch.optim.AdamW)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert ours.requires_grad and ours.grad_fn is None
    assert str(optimizer.state_dict()) == str(other.state_dict())
    of_ours, of_theirs = optimizer.state_dict(), other.state_dict()
    continued = trained(AdamW, of_theirs)[0], trained(torch.optim.AdamW, of_ours)[0]
    torch.testing.assert_close(*continued, rtol=0, atol=0)


RUN = """
import json, sys
sys.modules["triton"] = None
from pathlib import Path
from unittest.mock import Mock
from cppo_lab.core_records import Resources, load_core
from cppo_lab.sweep.compose import compose
for words in json.loads(sys.argv[1]):
    run = compose(words).run
    print(load_core(run.core)(run, Mock(), Resources(Path(), Path(), device="cpu")).status)
print({"torch", "torch._dynamo"} & sys.modules.keys())
"""


def test_no_run_of_an_embedded_core_loads_the_compiler_or_needs_triton(tmp_path: Path) -> None:
    runs = TINY, ["core=exact", "model=exact_early", "training.t_stop=5"]
    done = python("-c", RUN, json.dumps(runs), cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.stdout.splitlines() == [schema.DONE, schema.DONE, "{'torch'}"]
