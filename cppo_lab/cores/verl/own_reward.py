"""A reward function of the user's, `data.reward`, in verl's protocol of custom reward functions: what it may return.

`own_score` runs in verl's reward workers, `reward_parts` in the trainer.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.plugins import NAME, load

FAULT = "reward_fault"  # the key of what is wrong with an own reward; the trainer ends the run with it


def own_score(function: str, **response: Any) -> dict[str, Any]:
    """The reward of one response by the user's `function`, `package.module:name`, in verl's signature.

    Returns `score`, `acc` (the share of a right answer, by which a response is validated; the score where the function
    gives none) and the other numbers that it returns, its parts. What it does wrong is a text under FAULT, since verl
    would go on without the responses of a prompt whose reward has raised.
    """
    try:
        result = load(function, "data.reward")(**response)
        parts = result if isinstance(result, dict) else {"score": result}
        numbers = {key: float(value) for key, value in parts.items() if isinstance(value, Real)}
        if "score" not in numbers:
            raise ValueError(f"it returned {result!r:.200}: return a number, or a dict with a number `score`")
        if wrong := [
            key for key, value in numbers.items() if not math.isfinite(value) or not NAME.fullmatch(key)
        ]:
            raise ValueError(
                f"it returned {wrong[0]}={numbers[wrong[0]]}: return finite numbers under plain names"
            )
        numbers.setdefault("acc", numbers["score"])
        if not 0 <= numbers["acc"] <= 1:
            raise ValueError(
                f"acc={numbers['acc']:g}: validations need a share from 0 to 1: return a dict with `score` and `acc`"
            )
    except UserError as error:
        return {"score": 0.0, "acc": 0.0, FAULT: str(error)}
    except Exception as error:  # noqa: BLE001  the user's code raises what it likes
        return {"score": 0.0, "acc": 0.0, FAULT: f"data.reward={function!r}: {type(error).__name__}: {error}"}
    return numbers


def reward_parts(responses: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each part in the results of `own_score`, over the responses that have it, by its metric.

    Raises UserError for what the function did wrong.
    """
    parts = defaultdict[str, list[float]](list)
    for response in responses:
        if FAULT in response:
            raise UserError(response[FAULT])
        for name, value in response.items():
            parts[schema.reward_metric(name)].append(value)
    return {name: sum(values) / len(values) for name, values in parts.items()}
