"""Runs with `rollout.mode=async` in verl's own trainer: what they sample and train, and how they go on after a kill.

They are those of `asynchronous`, a process each.
"""

import json
import signal
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cppo_lab import schema
from cppo_lab.cores.verl import checkpoints
from tests.cores.verl.asynchronous import BOUND, STEPS, composed
from tests.cores.verl.conftest import LOG, ROOT, ran
from tests.cores.verl.story import HOLD
from tests.cores.verl.test_rollout import recomputed

pytestmark = pytest.mark.slow
KILLED = 4
PROMPTS = composed().run.batch.prompts
RESPONSES = composed().run.batch.responses


class Runs:
    """What the processes have seen."""

    def __init__(self, folder: Path, *overrides: str, python: str = sys.executable) -> None:
        self.folder, self.overrides, self.python = folder, overrides, python

    @cached_property
    def killed(self) -> dict[int, dict[str, Any]]:
        """By step, of both attempts."""
        folder = self.folder / "killed"
        assert self._train(folder, KILLED) == -signal.SIGKILL
        assert [step for _, (step, _) in checkpoints.rows(folder)] == list(range(KILLED))
        assert not self._train(folder)
        return self._seen(folder)

    @cached_property
    def uninterrupted(self) -> dict[int, dict[str, Any]]:
        folder = self.folder / "uninterrupted"
        assert not self._train(folder)
        return self._seen(folder)

    def _train(self, folder: Path, killed: int = 0) -> int:
        folder.mkdir(exist_ok=True)
        slow = {"PYTHONPATH": f"{ROOT}:{HOLD}", "SLOW_ENGINE": "0.03"}
        ended = ran(folder, "asynchronous", str(killed), *self.overrides, python=self.python, **slow)
        assert ended in (0, -signal.SIGKILL), (folder / LOG).read_text()[-5000:]
        return ended

    def _seen(self, folder: Path) -> dict[int, dict[str, Any]]:
        rows = dict(row for _, row in checkpoints.rows(folder))
        assert list(rows) == list(range(STEPS + 1))
        assert json.loads((folder / checkpoints.OUTCOME).read_text())["status"] == schema.DONE
        return {
            step: torch.load(folder / f"{step}.pt", weights_only=False) | {"row": rows[step]}
            for step in range(1, STEPS + 1)
        }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("async"))


def shares(row: dict[str, float]) -> dict[int, float]:
    return {age: row[schema.age_metric(age)] for age in range(BOUND + 1)}


def test_log_mu_and_topk_are_those_of_the_policy_that_each_token_names(runs: Runs) -> None:
    check_pieces(runs.killed, runs.folder / "killed")


def check_pieces(run: dict[int, dict[str, Any]], folder: Path) -> None:
    """Piece by piece, by a forward pass of transformers with the weights that the trainer had after that step."""
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


def test_no_token_is_older_than_the_bound_and_the_metrics_are_the_tokens(runs: Runs) -> None:
    for step, seen in runs.killed.items():
        ages = step - 1 - torch.cat(seen["policy_step"])
        assert int(ages.min()) >= 0 and int(ages.max()) <= BOUND
        assert seen["row"]["train/staleness_max"] == int(ages.max())
        assert seen["row"]["train/staleness_mean"] == pytest.approx(float(ages.double().mean()))
        for age, share in shares(seen["row"]).items():
            assert share == pytest.approx(float((ages == age).double().mean()))
    assert max(seen["row"]["train/staleness_max"] for seen in runs.killed.values()) > 0


def test_each_prompt_is_trained_once_though_the_run_is_killed_with_prompts_in_flight(runs: Runs) -> None:
    """All that were submitted to the end, but for one batch that is left."""
    last = runs.killed[STEPS]
    before, after = runs.killed[KILLED - 1]["submitted"], last["submitted"]
    assert len(before) == KILLED * PROMPTS and len(after) == (STEPS - KILLED + 1) * PROMPTS
    # The checkpoint has prompts that wait for their answers.
    assert {"pending", "running"} & set(last["restored"])
    submitted = before + after
    assert len(set(submitted)) == len(submitted)
    trained = [uid for seen in runs.killed.values() for uid in seen["trained"]]
    counted = {uid: trained.count(uid) for uid in set(trained)}
    assert set(counted.values()) == {RESPONSES} and len(counted) == STEPS * PROMPTS
    assert set(counted) < set(submitted) and len(submitted) - len(counted) == PROMPTS
