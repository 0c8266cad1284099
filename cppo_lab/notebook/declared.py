"""The declared runs of a sweep or study, each with its axis values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cppo_lab.sweep.file import Sweep
from cppo_lab.sweep.overrides import quote, read
from cppo_lab.sweep.plan import Plan

_OWN_COLUMN = frozenset({"model", "rule", "seed", "variant"})
_CHOICES = frozenset(
    {"core", "model", "variant"}
)  # names, which are written without quotes on a command line


@dataclass(frozen=True)
class DeclaredRun:
    """One run in one sweep. `axes`: the sweep's axes except the seed -> the run's value (None: it has no such key)."""

    sweep: str
    run_id: str
    variant: str
    rule: str
    model: str
    core: str
    seed: int | None
    t_stop: int | None
    axes: Mapping[str, Any] = field(default_factory=dict)


def override_text(key: str, value: Any) -> str:
    """A keyword argument as an override of the command line. A sequence is several values: `seed=[0, 1]` -> `seed=0,1`.

    Raises UserError for a text with a reference (`${...}`).
    """
    plain = value.tolist() if hasattr(value, "tolist") else value  # a numpy or pandas value
    values = list(plain) if isinstance(plain, Iterable) and not isinstance(plain, str) else [plain]
    if key in _CHOICES:
        return f"{key}={','.join(map(str, values))}"
    return f"{key}={','.join(quote(one) for one in values)}"


def declared_runs(plan: Plan, overrides: Iterable[str]) -> list[DeclaredRun]:
    """The runs, sweep by sweep as declared; a run shared by several sweeps is listed for each."""
    typed = [override.key for override in map(read, overrides) if override.values() is not None]
    return [
        DeclaredRun(
            sweep=sweep.name,
            run_id=run.run_id,
            variant=run.variants[sweep.name],
            rule=run.spec.rule.name,
            model=run.spec.model.name,
            core=plan.core,
            seed=run.spec.seed,
            t_stop=run.spec.training.t_stop,
            axes=_values(run.spec.model_dump(), _axes(sweep, plan.core, typed)),
        )
        for sweep in plan.sweeps
        for run in plan.runs
        if sweep.name in run.variants
    ]


def _axes(sweep: Sweep, core: str, typed: Iterable[str]) -> list[str]:
    return [key for key in dict.fromkeys([*sweep.axes_of(core), *typed]) if key not in _OWN_COLUMN]


def _values(spec: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The values of dotted keys. A whole section (an axis may be a group) becomes its name, or else its values as
    text.
    """
    found = {}
    for key in keys:
        value: Any = spec
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            text = " ".join(f"{name}={one}" for name, one in value.items())
            value = value.get("name", text)
        found[key] = value
    return found
