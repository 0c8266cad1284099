"""Which line each variant of a sweep has: one assignment for figures, report pages and MLflow."""

from collections.abc import Mapping, Sequence

from cppo_lab.rules import Stroke, known

# Of the paper's palette, for variants without a stroke of their own.
OTHERS = tuple(
    Stroke(colour, dash)
    for dash in ((), (5.0, 2.0), (1.0, 1.5))
    for colour in (
        *("#00A3A1", "#7B4FB5", "#E377C2", "#8C8C00", "#17699B", "#FF7F0E", "#9C755F", "#5C6B73"),
        *("#2E8B57", "#1FA2C4"),
    )
)


def assigned(own: Mapping[str, Stroke | None], others: Sequence[Stroke]) -> dict[str, Stroke]:
    """A stroke for each variant: its own if it has one, else one of the others that is free, in the order given."""
    taken = set(own.values())
    free = [stroke for stroke in others if stroke not in taken] or list(others)
    strangers = [name for name, stroke in own.items() if stroke is None]
    extra = {name: free[index % len(free)] for index, name in enumerate(strangers)}
    return {name: stroke or extra[name] for name, stroke in own.items()}


def colours(variants: Sequence[str]) -> dict[str, str]:
    """The colour of each variant of a sweep in the paper's palette; `variants`: all of the sweep, as declared."""
    records = {name: known(name) for name in variants}
    own = {name: None if one is None else one.stroke for name, one in records.items()}
    return {name: stroke.colour for name, stroke in assigned(own, OTHERS).items()}
