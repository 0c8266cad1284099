"""Runs with `rollout.mode=async` in verl's own trainer: what they sample and train, and how they go on after a kill.

They are those of `asynchronous`, a process each.
"""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cppo_lab import schema
from cppo_lab.cores.verl.checkpoints import read_outcome
from cppo_lab.schema import Outcome
from tests.cores.verl.asynchronous import BOUND, STEPS, composed
from tests.cores.verl.conftest import LOG, ROOT, ran, rows_in, steps_in
from tests.cores.verl.story import HOLD
from tests.cores.verl.test_rollout import recomputed

pytestmark = pytest.mark.slow
KILLED = 4
PROMPTS = composed().run.batch.prompts
RESPONSES = composed().run.batch.responses


def attempt(folder: Path, *overrides: str, killed: int = 0, python: str = sys.executable) -> None:
    """Train a run, from its last checkpoint if it has one, to its end or to a kill before step `killed` is trained."""
    slow = {"PYTHONPATH": f"{ROOT}:{HOLD}", "SLOW_ENGINE": "0.03"}
    ended = ran(folder, "asynchronous", str(killed), *overrides, python=python, **slow)
    assert ended == (-signal.SIGKILL if killed else 0), (folder / LOG).read_text()[-5000:]


def seen_in(folder: Path) -> dict[int, dict[str, Any]]:
    """What the processes of a run that has ended have seen, by step."""
    rows = dict(rows_in(folder))
    assert list(rows) == list(range(STEPS + 1))
    assert read_outcome(folder) == Outcome(schema.DONE, STEPS)
    return {
        step: torch.load(folder / f"{step}.pt", weights_only=False) | {"row": rows[step]}
        for step in range(1, STEPS + 1)
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that was killed and has gone on."""
    made = tmp_path_factory.mktemp("async")
    attempt(made, killed=KILLED)
    assert steps_in(made) == list(range(KILLED))
    attempt(made)
    return made


def test_log_mu_and_topk_are_those_of_the_policy_that_each_token_names(folder: Path) -> None:
    check_pieces(folder)


def check_pieces(folder: Path) -> None:
    """Piece by piece, by a forward pass of transformers with the weights that the trainer had after that step."""
    run = seen_in(folder)
    [path] = folder.glob("made_models/*/config.json")
    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32).eval()
    weights = {step: policy for seen in run.values() for step, policy in seen["weights"].items()}
    assert list(weights) == list(range(STEPS + 1))
    pieces, apart = 0, []
    for seen in run.values():
        columns = zip(*(seen[name] for name in ("prompts", "responses", "policy_step")), strict=True)
        for place, (prompt, response, steps) in enumerate(columns):
            assert torch.equal(steps, steps.sort().values)
            pieces += len(set(steps.tolist())) - 1
            for step in set(steps.tolist()):
                model.load_state_dict(weights[step], strict=False)
                log_mu, here = recomputed(model, prompt.tolist(), response.tolist(), 1.0), steps == step
                taken = log_mu.gather(-1, response[:, None])[:, 0]
                topk = log_mu.gather(-1, seen["rollout_topk_ids"][place].long())
                for name, expected in (("rollout_log_probs", taken), ("rollout_topk_logp", topk)):
                    gap = (seen[name][place] - expected).abs()
                    assert float(gap[here].max()) < 1e-4
                    apart += gap[~here].flatten().tolist()
    assert pieces > 3  # responses were interrupted in the middle
    assert max(apart) > 1e-3  # and the policies of their other pieces are others


def test_no_token_is_older_than_the_bound_and_the_metrics_are_the_tokens(folder: Path) -> None:
    oldest = []
    for step, seen in seen_in(folder).items():
        ages = step - 1 - torch.cat(seen["policy_step"])
        oldest.append(int(ages.max()))
        expected = {"train/staleness_max": oldest[-1], "train/staleness_mean": float(ages.double().mean())}
        expected |= {schema.age_metric(n): float((ages == n).double().mean()) for n in range(BOUND + 1)}
        assert {name: seen["row"][name] for name in expected} == pytest.approx(expected)
        assert int(ages.min()) >= 0
    assert 0 < max(oldest) <= BOUND


def test_each_prompt_is_trained_once_though_the_run_is_killed_with_prompts_in_flight(folder: Path) -> None:
    """All that were submitted to the end, but for one batch that is left."""
    run = seen_in(folder)
    before, after = run[KILLED - 1]["submitted"], run[STEPS]["submitted"]
    assert len(before) == KILLED * PROMPTS and len(after) == (STEPS - KILLED + 1) * PROMPTS
    # The checkpoint has prompts that wait for their answers.
    assert {"pending", "running"} & set(run[STEPS]["restored"])
    submitted = before + after
    assert len(set(submitted)) == len(submitted)
    trained = [uid for seen in run.values() for uid in seen["trained"]]
    counted = {uid: trained.count(uid) for uid in set(trained)}
    assert set(counted.values()) == {RESPONSES} and len(counted) == STEPS * PROMPTS
    assert set(counted) < set(submitted) and len(submitted) - len(counted) == PROMPTS
