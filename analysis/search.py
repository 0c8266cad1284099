"""A search as its MLflow run has it: `search.json`, checked where it enters, becomes an Optuna study in memory.

The functions below it rank the trials and quantify their noise, from each seed's values, recomputed from the validation
curves of the training runs. A search selects the highest of many noisy values, so the value of the best trial has a
selection bias: it is too high on average. With one seed per trial, noise cannot be told from a real difference.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, ValidationError

from cppo_lab import schema
from cppo_lab.analysis.inputs import SweepData, integer
from cppo_lab.analysis.reader import read_runs, read_searches
from cppo_lab.analysis.statistics.values import starts_with_seed
from cppo_lab.core_records import core_names
from cppo_lab.errors import UserError, first_fault
from cppo_lab.tracking import address
from cppo_lab.tracking.page import OBJECTIVES, filled
from cppo_lab.tracking.read import StoredFiles, reading

_SEARCH_FILE = "search.json"
LARGEST_SEARCH = 20_000_000  # bytes; a search of a thousand trials writes about a million
_MOST_TRIALS = 100_000
STATES = {
    "complete": TrialState.COMPLETE,
    "running": TrialState.RUNNING,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
_AGREE = 1e-6  # fractions closer than this are the same value
FAR = 2.0  # standard errors beyond which a difference is more than noise


def _line(value: str) -> str:
    """Text on one line, without characters that a page or a drawing cannot hold."""
    return "".join(symbol if symbol.isprintable() else "\ufffd" for symbol in " ".join(value.split()))


Line = Annotated[str, AfterValidator(_line)]
Value = bool | int | float | Line | None
Count = Annotated[int, Field(ge=0, strict=True)]
Fraction = Annotated[float, Field(ge=-1e-9, le=1 + 1e-9)]
Space = FloatDistribution | CategoricalDistribution


def _space(values: Any) -> Space:
    try:
        if "choices" in values:
            plain = [_line(choice) if isinstance(choice, str) else choice for choice in values["choices"]]
            return CategoricalDistribution(plain)
        return FloatDistribution(values["low"], values["high"], values["log"], values["step"])
    except (KeyError, ArithmeticError, TypeError, UserWarning) as error:
        raise ValueError(f"is no space to search: {error!r}") from None


class _Trial(BaseModel, allow_inf_nan=False):
    """`curve`: (step, mean score over the seeds so far); training step s of the i-th seed is step i * t_stop + s."""

    number: Annotated[Count, Field(lt=_MOST_TRIALS)]
    state: Literal["complete", "running", "pruned", "failed"]
    params: dict[str, Value]
    values: tuple[Fraction, ...] | None
    curve: tuple[tuple[Count, float], ...]
    run_ids: tuple[Line, ...]
    mlflow_id: Line | None
    reason: Line | None
    seconds: float | None


class SearchResult(BaseModel, allow_inf_nan=False):
    """The current state of a search. All objectives are fractions and are maximised.

    `optuna`: the trials as a study in memory, with `run_ids`, `mlflow_id`, `reason` and `seconds` as user attributes.
    """

    format: Literal[1]
    name: Line
    study: Line
    title: Line
    question: Line
    core: Line
    model: Line
    sampler: Line
    pruner: Line
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)]
    objectives: Annotated[tuple[Line, ...], Field(min_length=1)]
    t_stop: Count
    spaces: dict[Line, Annotated[Any, AfterValidator(_space)]] = Field(alias="parameters", min_length=1)
    listed: tuple[_Trial, ...] = Field(alias="trials")
    mlflow_id: str = ""
    _optuna: optuna.Study = PrivateAttr()

    def model_post_init(self, _: object) -> None:
        """Raises ValueError for what does not fit together."""
        if self.core not in core_names():
            raise ValueError(f"core={self.core!r} is unknown")
        if not {*self.objectives} <= OBJECTIVES.keys():
            raise ValueError(f"objectives={self.objectives} are unknown")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna.create_study(directions=["maximize"] * len(self.objectives))
        self._optuna.set_metric_names([name.replace("_", " ") for name in self.objectives])
        for trial in sorted(self.listed, key=lambda trial: trial.number):
            missing = trial.number - len(self._optuna.get_trials(deepcopy=False))  # they have not begun
            if missing < 0:
                raise ValueError(f"two trials have number {trial.number}")
            self._optuna.add_trials([create_trial(state=TrialState.WAITING)] * missing)
            complete, values = trial.state == "complete", trial.values or ()
            try:
                if complete and (
                    len(values) != len(self.objectives) or trial.params.keys() != self.spaces.keys()
                ):
                    raise ValueError("it is complete, and lacks values or parameters")
                frozen = create_trial(
                    state=STATES[trial.state],
                    values=values if complete else None,
                    params=trial.params,
                    distributions={name: self.spaces[name] for name in trial.params},
                    intermediate_values=dict(trial.curve),
                    user_attrs=trial.model_dump(include={"run_ids", "mlflow_id", "reason", "seconds"}),
                )
                self._optuna.add_trial(frozen)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"trial {trial.number} is of another search: {error}") from None

    @property
    def optuna(self) -> optuna.Study:
        return self._optuna

    @cached_property
    def trials(self) -> list[FrozenTrial]:
        """All that have begun, by number."""
        return self._optuna.get_trials(deepcopy=False, states=tuple(STATES.values()))

    @cached_property
    def complete(self) -> list[FrozenTrial]:
        return self._optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    @cached_property
    def front(self) -> list[int]:
        """Numbers of the complete trials that no other dominates; with one objective those of the highest value."""
        return [trial.number for trial in self._optuna.best_trials]

    @cached_property
    def ranking(self) -> list[FrozenTrial]:
        """The complete trials, best first: the front, then by the first objective; ties by number."""
        front = self.front
        return sorted(
            self.complete, key=lambda trial: (trial.number not in front, -trial.values[0], trial.number)
        )


def read_search_file(uri: str, mlflow_ids: Iterable[str]) -> tuple[str, str] | None:
    """(MLflow run, text of its `search.json`) of the first of the runs with this file; None if no run has it.

    Raises UserError if the store fails or the file is too large.
    """
    address.require_store(uri)
    with reading(uri) as client:
        for mlflow_id in mlflow_ids:
            content = StoredFiles(client, mlflow_id).content(_SEARCH_FILE, LARGEST_SEARCH)
            if content is not None:
                return mlflow_id, content.decode("utf-8", errors="replace")
    return None


def read_search(uri: str, experiment: str, study: str) -> SearchResult:
    """The latest state of `study` in `experiment` of the store at `uri`.

    Raises UserError if the store or the experiment cannot be read, if there is no such study (the message lists the
    existing ones), if it has no state yet, or if the file is malformed.
    """
    studies = read_searches(uri, experiment)
    if study not in studies:
        names = ", ".join(studies) or "none"
        raise UserError(
            f"experiment {experiment!r} has no search {study!r}: it has {names}; run `cppo tune SEARCH` first, "
            "or name one of these with --study"
        )
    stored = read_search_file(uri, studies[study])
    if stored is None:
        raise UserError(
            f"search {study!r} has no {_SEARCH_FILE} yet: it is written when the first trial ends; "
            "wait for it, or start the search again with `cppo tune`"
        )
    result = parse_search(stored[1], stored[0])
    if result.study != study:
        raise UserError(_damaged(stored[0], f"is of study {result.study!r}"))
    return result


def _damaged(mlflow_id: str, why: str) -> str:
    remedy = f"`cppo tune` rewrites it after each trial; delete MLflow run {mlflow_id} if that does not help"
    return f"{_SEARCH_FILE} of MLflow run {mlflow_id} {why}: {remedy}"


def parse_search(content: str, mlflow_id: str) -> SearchResult:
    """The search in the text of a `search.json`. Raises UserError if it is invalid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # of Optuna, of a choice that is no plain value
            warnings.simplefilter("ignore", ExperimentalWarning)
            return SearchResult.model_validate_json(content).model_copy(update={"mlflow_id": mlflow_id})
    except ValidationError as error:
        raise UserError(_damaged(mlflow_id, first_fault(error.errors()))) from None


def scaled(space: FloatDistribution, value: Value) -> float:
    """The position of `value` in the space, from 0 to 1 on the declared scale."""
    place, low, high = (
        math.log(end) if space.log else end for end in (float(value or 0), space.low, space.high)
    )
    return 0.5 if high == low else (place - low) / (high - low)


@dataclass(frozen=True)
class SeedValues:
    """The values of an objective for each seed of the complete trials.

    `values`: trial -> its seeds' values, for the trials whose runs are all in the store. `differ`: the trials among
    them whose mean differs from the recorded value. `paired`: trials with the same seed share their start
    (`values.starts_with_seed`).
    """

    objective: str
    values: Mapping[int, tuple[float, ...]]
    differ: tuple[int, ...]
    paired: bool = False


@dataclass(frozen=True)
class BestTrialLead:
    """The lead of the best trial. `scatter`: standard deviation over seeds, pooled over `trials` trials; if they are
    `paired` by seed, of what is left once the mean of each seed is taken off. `error`: standard error of the difference
    between two trials' means. `close`: the other trials within FAR standard errors of the best. `second`: the margin to
    the runner-up.
    """

    scatter: float
    paired: bool
    trials: int
    error: float
    second: float
    close: tuple[int, ...]


def read_seed_values(uri: str, experiment: str, result: SearchResult) -> tuple[SeedValues, ...]:
    """The seeds' values per objective; empty with one seed, which has no spread. Raises UserError if the store cannot
    be read.
    """
    if len(result.seeds) < 2:
        return ()
    run_ids = {run_id for trial in result.complete for run_id in trial.user_attrs["run_ids"]}
    data = read_runs(
        uri,
        experiment,
        run_ids,
        lambda name: (schema.parse_validation_metric(name) or ("",))[0] == schema.MEAN,
    )
    curves = mean_curves(data, result.t_stop)
    paired = all(
        starts_with_seed(data, str(run.mlflow_id), None if pd.isna(run.seed) else int(run.seed))
        for run in data.runs.itertuples()
    )
    whole = {
        trial.number: [curves[run_id] for run_id in run_ids]
        for trial in result.complete
        if curves.keys() >= {*(run_ids := trial.user_attrs["run_ids"])} and len(run_ids) == len(result.seeds)
    }
    seeds = []
    for index, objective in enumerate(result.objectives):
        values = {number: tuple(map(OBJECTIVES[objective], scores)) for number, scores in whole.items()}
        differ = tuple(
            trial.number
            for trial in result.complete
            if trial.number in values
            and abs(float(np.mean(values[trial.number])) - trial.values[index]) > _AGREE
        )
        seeds.append(SeedValues(objective, values, differ, paired))
    return tuple(seeds)


def mean_curves(data: SweepData, t_stop: int) -> dict[str, list[float]]:
    """Run id -> its mean scores over the benchmarks at each validation up to `t_stop`, in order. The missing
    validations of a run that ended early are filled in with its last score.
    """
    curves = {}
    run_ids = dict(zip(data.runs["mlflow_id"], data.runs["run_id"], strict=True))
    points = data.metrics[data.metrics["step"] <= t_stop].dropna(subset="value")
    for mlflow_id, rows in points.groupby("mlflow_id", observed=True):
        curve = list(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))
        configured = integer(data.params.get(str(mlflow_id), {}).get("validation.every", "")) or 0
        last = (curve[-1][0] - curve[-2][0] if len(curve) > 1 else curve[-1][0]) or 1
        every = configured if configured > 0 else last
        curves[run_ids[mlflow_id]] = filled(curve, t_stop, every)
    return curves


def best_trial_lead(result: SearchResult, seeds: Sequence[SeedValues]) -> BestTrialLead | None:
    """The lead of the best trial of a search with one objective; None if the spread over seeds is unknown or there is
    nothing to compare.
    """
    ranked = result.ranking
    if not seeds or not seeds[0].values or len(result.objectives) > 1 or len(ranked) < 2:
        return None
    # What the seeds do to all trials cancels in their differences.
    table = np.array([*seeds[0].values.values()])
    paired = seeds[0].paired and len(table) > 1
    squares = (table - table.mean(1, keepdims=True) - paired * (table.mean(0) - table.mean())) ** 2
    scatter = math.sqrt(squares.sum() / ((len(table) - paired) * (table.shape[1] - 1)))
    error = scatter * math.sqrt(2 / len(result.seeds))
    leads = {trial.number: ranked[0].values[0] - trial.values[0] for trial in ranked[1:]}
    close = tuple(number for number, lead in leads.items() if lead <= FAR * error)
    return BestTrialLead(scatter, paired, len(table), error, min(leads.values()), close)
