"""Conditions on the runs of a sweep (`exclude`, `resources.for`): which runs they match, and checks that they match
any.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cppo_lab.errors import UserError, unknown
from cppo_lab.sweep.declare import Conditions, Sweep, same
from cppo_lab.sweep.declared import ANY_CORE, Scalar
from cppo_lab.sweep.labels import number

NAMES = ("variant", "model", "core")


@dataclass(frozen=True, slots=True)
class GridPoint:
    """A run as declared by its sweep: its names, and the values of its variant's keys and axes."""

    core: str
    model: str
    variant: str
    values: Mapping[str, Scalar]

    def get(self, key: str) -> tuple[Scalar, ...]:
        """The value of a condition's key; empty if the run has none."""
        if key in NAMES:
            return (getattr(self, key),)
        return (self.values[key],) if key in self.values else ()


def meets(place: GridPoint, conditions: Conditions) -> bool:
    """Whether a run meets all conditions."""
    return all(
        any(same(value, one) for value in place.get(key) for one in wanted)
        for key, wanted in conditions.items()
    )


def declared_conditions(sweep: Sweep) -> list[tuple[str, Conditions]]:
    """All conditions of a sweep file, with the dotted key of each."""
    found: list[tuple[str, Conditions]] = [(f"exclude.{i}", entry) for i, entry in enumerate(sweep.exclude)]
    found += [
        (f"resources.{i}.for", rule.for_) for i, rule in enumerate(sweep.resources) if rule.for_ is not None
    ]
    return found


def cores_of(sweep: Sweep) -> list[str]:
    """The cores for which a sweep file has separate lists."""
    cores = {core for values in sweep.axes.values() for core in values} | set(sweep.models)
    return sorted(cores - {ANY_CORE})


def check_names(sweep: Sweep, core: str, all_cores: Sequence[str]) -> None:
    """Check that every key and value of every condition exists in the sweep, for this core or another.

    Raises UserError for the first that does not.
    """
    for where, conditions in declared_conditions(sweep):
        valid = _valid(sweep, [core, *cores_of(sweep)], all_cores)
        for key, wanted in conditions.items():
            if key not in valid:
                raise UserError(f"sweep {sweep.source}: {where}.{key}: {unknown('condition', key, valid)}")
            for value in wanted:
                if not any(same(value, one) for one in valid[key]):
                    names = unknown(key, value, map(number, valid[key]))
                    raise UserError(f"sweep {sweep.source}: {where}.{key}={value!r}: {names}")


def is_elsewhere(sweep: Sweep, conditions: Conditions, core: str, all_cores: Sequence[str]) -> bool:
    """Whether the conditions contain a value that only other cores have."""
    here = _valid(sweep, [core], [core])
    others = _valid(sweep, [other for other in cores_of(sweep) if other != core], all_cores)
    return any(
        not any(same(value, one) for value in wanted for one in here.get(key, ()))
        and all(any(same(value, one) for one in others.get(key, ())) for value in wanted)
        for key, wanted in conditions.items()
    )


def nothing_met(sweep: Sweep, where: str, conditions: Conditions) -> UserError:
    """The error for conditions that are valid individually, but match no run."""
    said = ", ".join(f"{key}: {'/'.join(map(number, wanted))}" for key, wanted in conditions.items())
    return UserError(
        f"sweep {sweep.source}: {where}={{{said}}}: no run of the sweep has all of these: remove the entry, or a "
        "condition of it"
    )


def _valid(sweep: Sweep, cores: Sequence[str], all_cores: Sequence[str]) -> dict[str, list[Scalar]]:
    """The valid values of each condition key, for these cores."""
    models = [name for core in cores for name in sweep.models.get(core) or sweep.models.get(ANY_CORE, ())]
    valid: dict[str, list[Scalar]] = {
        "variant": [name for name in sweep.variants if name],
        "model": list(dict.fromkeys(models)),
        "core": list(all_cores),
    }
    for keys in sweep.variants.values():
        for key, value in keys.items():
            valid.setdefault(key, []).append(value)
    for key, by_core in sweep.axes.items():
        values = [value for core in cores for value in by_core.get(core) or by_core.get(ANY_CORE, ())]
        valid.setdefault(key, []).extend(values)
    return valid
