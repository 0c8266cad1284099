"""The page docs/benchmarks.md: a pure function of what was measured where."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.summary.form import Figure
from benchmarks.summary.running import Ran


@dataclass(frozen=True)
class Measured:
    """Everything on the page. `load` is the machine's before the first benchmark began; `pictures` are the links of
    the drawings with what they show.
    """

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    load: float
    quick: bool
    ran: Sequence[Ran]
    pictures: Mapping[str, str]


def page(found: Measured) -> str:
    """The page in Markdown."""
    return "\n".join([*_head(found), *_summary(found), *_pictures(found), *_sections(found)]).rstrip() + "\n"


def tally(ran: Ran) -> str:
    """A benchmark's end in a few words."""
    if ran.result is None:
        return f"failed: {ran.failure}"
    if ran.result.skipped:
        return f"cannot run here: {ran.result.skipped}"
    judged = [figure.met for figure in ran.result.figures.values() if figure.judged]
    met, missed, absent = (judged.count(kind) for kind in (True, False, None))
    words = [f"{met} of {met + missed} targets met"] + ([f"{absent} not measured"] if absent else [])
    return ", ".join(words)


def number(value: float) -> str:
    """At least four digits; an exponent only for the very large and the very small."""
    if 1e4 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _head(found: Measured) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    how = "make bench QUICK=1" if found.quick else "make bench"
    yield f"Written by `{how}`, which runs every script under `benchmarks/`, on {found.date}. Do not edit."
    yield ""
    threads = float(found.machine.get("Threads", "1"))
    if found.quick:
        yield "**A quick run**: fewer repetitions and smaller sizes. Its ratios scatter more than those of a full run."
        yield ""
    if found.load > 0.75 * threads:
        yield (
            f"**A loaded machine**: before the first benchmark began, {found.load:.1f} processes wanted its "
            f"{threads:.0f} threads. Times are too long; ratios taken in turn suffer less."
        )
        yield ""
    yield from _table(("Machine", ""), found.machine.items())
    yield from _table(("Version", ""), found.versions.items())


def _summary(found: Measured) -> Iterator[str]:
    yield "## Summary"
    yield ""
    rows = [(f"[{one.name}](#{one.name})", tally(one), f"{one.seconds:.0f} s") for one in found.ran]
    yield from _table(("Benchmark", "Targets", "Took"), rows)


def _pictures(found: Measured) -> Iterator[str]:
    for link, text in found.pictures.items():
        yield f"![{_cell(text)}]({link})"
        yield ""


def _sections(found: Measured) -> Iterator[str]:
    for one in found.ran:
        yield f"## {one.name}"
        yield ""
        yield one.about
        yield ""
        yield f"    {one.command}"
        yield ""
        if one.result is None:
            yield f"**Failed**: {_cell(one.failure)}"
            yield ""
            continue
        if one.result.skipped:
            yield f"Cannot run here: {_cell(one.result.skipped)}."
            yield ""
            continue
        yield from _figures(one.result.figures)


def _figures(figures: Mapping[str, Figure]) -> Iterator[str]:
    """Those with a target, and the others folded away."""
    judged = {name: figure for name, figure in figures.items() if figure.judged}
    others = {name: figure for name, figure in figures.items() if not figure.judged}
    rows = [(f"`{name}`", _value(one), _target(one), _verdict(one)) for name, one in judged.items()]
    if rows:
        yield from _table(("Figure", "Measured", "Target", ""), rows)
    if others:
        yield f"<details><summary>{len(others)} more figures, without a target</summary>"
        yield ""
        yield from _table(
            ("Figure", "Measured"), [(f"`{name}`", _value(one)) for name, one in others.items()]
        )
        yield "</details>"
        yield ""


def _value(figure: Figure) -> str:
    if figure.value is None:
        return "not measured: " + figure.absent
    return f"{number(figure.value)} {figure.unit}".strip()


def _target(figure: Figure) -> str:
    ends = (("at most", figure.at_most), ("at least", figure.at_least))
    return " and ".join(
        f"{word} {number(end)} {figure.unit}".strip() for word, end in ends if end is not None
    )


def _verdict(figure: Figure) -> str:
    return {True: "met", False: "**not met**", None: ""}[figure.met]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"
    yield ""


def _cell(text: str) -> str:
    """A text that stays in its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
