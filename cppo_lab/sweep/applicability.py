"""Which axes and overrides apply to a run: a rule's constant applies to the rules that have it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cppo_lab.errors import UserError
from cppo_lab.sweep.compose import SHARED_CONSTANTS, UnknownKey, compose, takes
from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.grid import Grid
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.overrides import override, read

# Keys that not every run has or depends on. Any other key is applied to every run, and is an error if unknown.
OPTIONAL = ("rule.", *SHARED_CONSTANTS)


@dataclass(frozen=True, slots=True)
class Fit:
    """The axes and the command-line overrides that apply to a run."""

    axes: tuple[str, ...]
    rest: tuple[str, ...]


class Fitting:
    """Determines what applies to the runs of a grid; cached for runs with the same group choices."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.group_axes = [key for key in grid.axes if key in groups()]
        self._known: dict[tuple[object, ...], Fit] = {}

    def of(self, model: str, variant: str, point: Mapping[str, Scalar]) -> Fit:
        """The axes and overrides that apply to a model and variant at one point of the axes."""
        chosen = (model, variant, *(point[key] for key in self.group_axes))
        if chosen not in self._known:
            self._known[chosen] = self._find(model, variant, point)
        return self._known[chosen]

    def used(self) -> set[str]:
        """The axes and overrides that apply to some run."""
        return {name for fit in self._known.values() for name in (*fit.axes, *fit.rest)}

    def choices(self, model: str, variant: str, point: Mapping[str, Scalar]) -> list[str]:
        """The overrides that choose group options."""
        keys = {"model": model, **self.grid.variants[variant], **{key: point[key] for key in self.group_axes}}
        texts = [override(key, value) for key, value in keys.items() if key in groups()]
        return [*texts, *(text for text in self.grid.rest if read(text).kind == "choice")]

    def _find(self, model: str, variant: str, point: Mapping[str, Scalar]) -> Fit:
        choices, rest = self.choices(model, variant, point), self.grid.rest
        given = {*self.grid.variants[variant], *point, *(read(text).key for text in rest)}
        axes = tuple(key for key in point if not key.startswith(OPTIONAL) or takes(choices, key, given))
        return Fit(axes, tuple(text for text in rest if _fits(text, choices, given)))


def _fits(text: str, choices: Sequence[str], given: Iterable[str]) -> bool:
    """Whether a command-line override applies to runs with these group choices."""
    key = read(text).key
    if not key.startswith(OPTIONAL):
        return True
    if read(text).kind == "value":
        return takes(choices, key, set(given))
    try:
        run_id = compose([*choices, text]).run_id
    except UnknownKey as error:
        if error.key != key:
            raise
        return False
    return key.startswith("rule.") or run_id != compose(choices).run_id


def refuse(unused: Iterable[str]) -> None:
    """Raise UserError for the first override that applies to no run."""
    for text in unused:
        key, values = read(text).key, read(text).values()
        if key.startswith(SHARED_CONSTANTS):
            # Constants that rules take from their model or recipe are not part of a run themselves.
            raise UserError(f"override {text!r}: no run of this sweep depends on {key!r}; remove it")
        compose([override(key, values[0]) if values else text])
        raise UserError(f"override {text!r}: no variant of this sweep has the key {key!r}; remove it")
