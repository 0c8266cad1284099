"""A made search whose response surface is known, as `cppo tune` leaves it in a store: the run of the study with its
`search.json`, and the training runs of its trials with their validation curves.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis.search import SearchResult, parse_search
from tests.analysis.made_sweeps import MadeRun, experiment_in, write_runs

T_STOP, EVERY = 60, 10
PEAK = {"rule.delta_b": 0.01, "rule.w_min": 0.7}
SCATTER = 0.004  # half the distance between the two seeds of a trial


def surface(delta_b: float, w_min: float) -> float:
    """A quadratic in log10 delta_b and w_min with its peak of 0.6 at PEAK."""
    x, y = math.log10(delta_b / PEAK["rule.delta_b"]), w_min - PEAK["rule.w_min"]
    return 0.6 - 0.25 * x * x - 0.5 * y * y


def seed_curve(final: float) -> list[tuple[int, float]]:
    """A validation curve, step 0 included, whose last three scores are `final`."""
    shares = (0.1, 0.4, 0.7, 0.9, 1.0, 1.0, 1.0)
    return [(EVERY * index, final * share) for index, share in enumerate(shares)]


def made_trial(number: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Complete, but for every seventh (pruned at step 20) and trial 11 (failed)."""
    delta_b = 0.002 * 25 ** ((number * 7 % 24) / 23)
    w_min = round(0.4 + 0.05 * (number * 5 % 13), 2)
    value = surface(delta_b, w_min)
    state = "failed" if number == 11 else "pruned" if number % 7 == 6 else "complete"
    steps = {"complete": T_STOP, "pruned": 20, "failed": 0}[state]
    curve = [
        [place * T_STOP + step, score]
        for place in range(len(seeds) if state == "complete" else 1)
        for step, score in seed_curve(value)
        if step <= steps and (step or not place)
    ]
    return {
        "number": number,
        "state": state,
        "params": {"rule.delta_b": delta_b, "rule.w_min": w_min},
        "values": [value] if state == "complete" else None,
        "curve": curve,
        "run_ids": [f"run-{number}-{seed}" for seed in seeds] if state == "complete" else [],
        "mlflow_id": f"{number:032x}",
        "reason": "out of memory" if state == "failed" else "",
        "seconds": 30.0 + number,
    }


def made_search(trials: int = 24, seeds: Sequence[int] = (0, 1), **changes: Any) -> dict[str, Any]:
    """The content of a `search.json`."""
    listed = [made_trial(number, seeds) for number in range(trials)]
    complete = [trial for trial in listed if trial["state"] == "complete"]
    content = {
        "format": 1,
        "name": "tune_made",
        "study": "tune_made-mini_base",
        "title": "Tuning of made constants",
        "question": "Where is the peak?",
        "core": "mini",
        "model": "mini_base",
        "seeds": list(seeds),
        "sampler": "tpe",
        "pruner": "median",
        "objectives": ["final_score"],
        "parameters": {
            "rule.delta_b": {"low": 0.002, "high": 0.05, "log": True, "step": None},
            "rule.w_min": {"low": 0.4, "high": 1.0, "log": False, "step": 0.05},
        },
        "t_stop": T_STOP,
        "trials": listed,
        "importances": {"final_score": {"rule.w_min": 0.3, "rule.delta_b": 0.7}},
        "best": [max(complete, key=lambda trial: trial["values"][0])["number"]] if complete else [],
    }
    return content | changes


def log_search(uri: str, content: dict[str, Any] | str, study: str = "tune_made-mini_base") -> str:
    """Logs the study's run with `content` as its `search.json`; returns its MLflow id."""
    client, experiment = MlflowClient(uri), experiment_in(uri, "cppo-mini")
    run = client.create_run(experiment, tags={schema.TAG_SEARCH: study}).info.run_id
    client.log_text(run, content if isinstance(content, str) else json.dumps(content), "search.json")
    trial = {schema.TAG_SEARCH: study, schema.TAG_TRIAL: "0", schema.TAG_PARENT: run}
    client.log_text(client.create_run(experiment, tags=trial).info.run_id, "{}", "search.json")
    return str(run)


def log_training(uri: str, content: dict[str, Any], drawn: bool = False) -> None:
    """Logs the training runs of the complete trials: the value of a seed is that of the trial plus or minus
    SCATTER, so that their mean is what the search says. `drawn`: seeds draw the starts.
    """
    name = schema.validation_metric(schema.MEAN, 8)
    runs = [
        MadeRun(
            "cppo",
            run_id=run_id,
            t_stop=content["t_stop"],
            logged={name: dict(seed_curve(trial["values"][0] + (SCATTER if place % 2 else -SCATTER)))},
        )
        for trial in content["trials"]
        for place, run_id in enumerate(trial["run_ids"])
    ]
    drawn_tag = {schema.TAG_SEED_FIXES_START: str(drawn).lower()}
    write_runs(uri, runs, params={"validation.every": str(EVERY)}, **drawn_tag)


def parsed(content: dict[str, Any]) -> SearchResult:
    """What is read of a `search.json` of this content."""
    return parse_search(json.dumps(content), "x")
