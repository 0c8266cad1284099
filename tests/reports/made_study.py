"""A made-up study in a store: all seven sweeps of the paper's grid on four models, with the diagnostics that runs
leave. The curves only look like training; nothing here was trained.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun, SweepGrid

MODELS = ("post", "base_s", "base_m", "moe")
METHODS = ("grpo", "minpro", "cispo", "dppo", "trm_max", "trm_avg", "cppo")
BENCHMARKS = ("chain24", "chain25", "chain26")
# sweep -> (model, variant in the sweep -> the run's own variant name)
SWEEPS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "main": (MODELS, {name: name for name in METHODS}),
    "single_mechanism": (
        ("post",),
        {name: name for name in ("cppo", "cppo_no_position_weight", "cppo_no_prefix_budget", "dppo")},
    ),
    "position_weight_ordering": (
        ("post",),
        {name: name for name in ("cppo_no_prefix_budget", "cppo_no_prefix_budget_shuffled", "dppo")},
    ),
    "mask_vs_soft": (("post",), {name: name for name in ("cppo", "cppo_soft", "dppo")}),
    "sensitivity": (
        ("base_s",),
        {
            "cppo_db0.02_w0.8": "cppo",
            "cppo_db0.03_w0.8": "cppo_db0.03_w0.8",
            "cppo_db0.02_w0.6": "cppo_db0.02_w0.6",
            "dppo": "dppo",
        },
    ),
    "kl_vs_tv": (
        ("base_s",),
        {"cppo_tv": "cppo", "cppo_kl": "cppo_kl", "trm_max_avg": "trm_max_avg", "dppo": "dppo"},
    ),
    "binary_vs_topk": (
        ("base_s",),
        {"cppo_topk_tv": "cppo", "cppo_binary_tv": "cppo_binary_tv", "dppo": "dppo"},
    ),
}
BEST = {
    "grpo": 0.30,
    "minpro": 0.36,
    "cispo": 0.40,
    "dppo": 0.42,
    "trm_max": 0.44,
    "trm_avg": 0.46,
    "cppo": 0.52,
}
COLLAPSED = ("moe", "cispo", 1)  # this run diverges half-way


@dataclass(frozen=True)
class MadeStudy:
    """How large the made-up study is: steps per run, one evaluation each `every`, tokens per response."""

    t_stop: int = 20
    every: int = 5
    length: int = 32
    seeds: tuple[int, ...] = (0, 1)
    left_out: frozenset[str] = field(default_factory=frozenset)  # run ids that are not written
    artifacts: bool = True

    def grids(self) -> tuple[SweepGrid, ...]:
        """What the study declares."""
        return tuple(
            SweepGrid(
                sweep,
                sweep.replace("_", " ").capitalize(),
                f"What does {sweep} say?",
                tuple(
                    ExpectedRun(run_id(model, own, seed), model, variant, seed)
                    for model in models
                    for variant, own in variants.items()
                    for seed in self.seeds
                ),
            )
            for sweep, (models, variants) in SWEEPS.items()
        )

    def write(self, uri: str, folder: Path) -> None:
        """Puts the runs into the (empty) store at `uri`, with their artifacts under `folder`."""
        client = MlflowClient(uri)
        experiment = client.create_experiment(
            schema.experiment_name("mini"), artifact_location=(folder / "artifacts").as_uri()
        )
        tags: dict[tuple[str, str], dict[str, str]] = {}
        for sweep, (models, variants) in SWEEPS.items():
            for model in models:
                for variant, own in variants.items():
                    tags.setdefault((model, own), {})[schema.sweep_tag(sweep)] = variant
        for number, ((model, own), of_sweeps) in enumerate(tags.items()):
            for seed in self.seeds:
                if run_id(model, own, seed) not in self.left_out:
                    self._write_run(client, experiment, (model, own, seed), of_sweeps, number)

    def _write_run(
        self,
        client: MlflowClient,
        experiment: str,
        key: tuple[str, str, int],
        of_sweeps: dict[str, str],
        number: int,
    ) -> None:
        model, own, seed = key
        collapsed = key == COLLAPSED
        rule = "cppo" if own.startswith("cppo_db") or own in ("cppo_kl", "cppo_binary_tv") else own
        tags = {
            schema.TAG_RUN_ID: run_id(*key),
            schema.TAG_RULE: rule,
            schema.TAG_MODEL: model,
            schema.TAG_CORE: "mini",
            schema.TAG_SEED: str(seed),
            schema.TAG_T_STOP: str(self.t_stop),
            schema.TAG_STATUS: schema.COLLAPSED if collapsed else schema.DONE,
            **({schema.TAG_REASON: "reward fell to 0"} if collapsed else {}),
            **of_sweeps,
        }
        run = client.create_run(experiment, start_time=number + 1, tags=tags)
        draw = Random(f"{key}")
        last = self.t_stop // 2 if collapsed else self.t_stop
        points = list(self._points(model, own, last, collapsed, draw))
        for start in range(0, len(points), 1000):
            client.log_batch(run.info.run_id, metrics=points[start : start + 1000])
        params = {
            **{
                "batch.prompts": 32,
                "batch.responses": 8,
                "batch.minibatch_prompts": 16 if model == "post" else 4,
            },
            **{"rollout.max_response_length": self.length, "optim.learning_rate": 0.0006},
            **{"training.t_stop": self.t_stop, "rule.name": rule, "divergence.estimator": "topk"},
        }
        if rule.startswith("cppo"):
            params |= {"rule.delta": 0.2 if model == "moe" else 0.15, "rule.delta_b": 0.02, "rule.w_min": 0.8}
        client.log_batch(run.info.run_id, params=[Param(name, str(value)) for name, value in params.items()])
        if self.artifacts:
            client.log_dict(run.info.run_id, positions(own, self.length, draw), "diagnostics/positions.json")
            if rule == "cppo":
                client.log_dict(run.info.run_id, window(2 * self.length, draw), "diagnostics/window.json")
        client.set_terminated(run.info.run_id)

    def _points(self, model: str, own: str, last: int, collapsed: bool, draw: Random) -> Iterator[Metric]:
        best = BEST.get(own, 0.45 if own.startswith("cppo") else 0.41) * (0.6 + 0.2 * MODELS.index(model))
        pace = 0.35 * self.t_stop * (1 + 0.1 * draw.random())
        for step in range(last + 1):
            share = 1 - math.exp(-step / pace)
            level = best * (0.15 + 0.85 * share) * (0.0 if collapsed and step == last else 1.0)
            if step % self.every == 0:
                for offset, name in enumerate(BENCHMARKS):
                    value = level * (1 + 0.12 * (offset - 1)) + 0.008 * draw.gauss(0, 1)
                    yield Metric(schema.validation_metric(name), min(1, max(0, value)), step, step)
            if step == 0:
                continue
            logged = {
                "train/reward": 0.2 + 0.5 * level + 0.05 * draw.gauss(0, 1),
                "train/response_length": self.length * (0.5 + 0.4 * share) + draw.gauss(0, 0.6),
                "train/relative_logprob_error": 0.05 + 0.05 * share * (own == "grpo") + 0.004 * draw.random(),
                "rule/masked_fraction": 0.01 * draw.random(),
            }
            if own == "cppo":
                logged["rule/delta_b_mean"] = 0.02 + 0.015 * math.exp(-step / pace) + 0.001 * draw.random()
                logged["rule/prefix_budget_share"] = min(1, 0.2 + 0.5 * share + 0.05 * draw.random())
            for name, value in logged.items():
                yield Metric(name, value, step, step)


def run_id(model: str, own: str, seed: int) -> str:
    """The id of one made-up run."""
    return f"{model}-{own}-{seed}"


def positions(own: str, length: int, draw: Random) -> dict[str, Any]:
    """Gaps that grow with the position."""
    scale = 0.8 if own.startswith("cppo") else 1.0
    gap = [scale * (0.01 + 0.015 * place / length + 0.001 * draw.random()) for place in range(length)]
    weighted = own.startswith("cppo")
    return {
        "position": list(range(1, length + 1)),
        "tokens": [max(0, 4000 - 4200 * place // length) for place in range(length)],
        "gap_mean": gap,
        "gap_top10": [6 * value for value in gap],
        "w_min": 0.8 if weighted else None,
        "delta": 0.15 if weighted or own == "dppo" else None,
    }


def window(length: int, draw: Random) -> dict[str, Any]:
    """One response under CPPO, by the equations of the rule."""
    delta, delta_b, w_min = 0.15, 0.02, 0.8
    weights = [1 - (1 - w_min) * place / (length - 1) for place in range(length)]
    spent, allowed = 0.0, 0.0
    result: dict[str, Any] = {"step": 10, "symbols": [], "token_threshold": delta}
    for name in ("weighted_divergence", "prefix_threshold", "moves_away", "masked_by"):
        result[name] = []
    for place, weight in enumerate(weights):
        weighted = weight * min(0.6, draw.expovariate(1 / 0.016) + (0.2 if place in (40, 41) else 0.0))
        away = draw.random() < 0.6 or place == 40
        limit = delta + delta_b * allowed - spent
        reason = "token" if weighted > delta else "prefix" if weighted > limit else ""
        result["symbols"].append("0123456789+-*=;\n $"[draw.randrange(18)])
        result["weighted_divergence"].append(weighted)
        result["prefix_threshold"].append(limit)
        result["moves_away"].append(away)
        result["masked_by"].append(reason if away else "")
        spent, allowed = spent + weighted, allowed + weight
    return result
