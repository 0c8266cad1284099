"""Table 2: the differences between the rules, from their records. A rule without a row in its record, or that cannot be
imported here, is shown as a row of dashes if runs use it.
"""

from collections.abc import Collection

from cppo_lab.reports.names import OURS, display_name
from cppo_lab.reports.text_tables import TextRow, TextTable
from cppo_lab.rules import RULES, Rule, known

HEADINGS = ("Bounds", "Decides per", "Position", "Prefix", "Beyond it", "In this study")
YES, NO, UNKNOWN = "yes", "no", "–"


def comparison_table(title: str, used: Collection[str]) -> TextTable:
    """All built-in rules, and the others in `used`, the rules of the report's runs."""
    others = sorted(set(used) - set(RULES))
    rows = tuple(
        TextRow(display_name(rule), rule == OURS, (*_properties(rule), YES if rule in used else NO))
        for rule in (*RULES, *others)
    )
    notes = (
        "Position, Prefix: whether the limit of a token depends on its position, and on the tokens before it.",
        "Beyond it: masked, no objective; clipped, no gradient; capped, the coefficient stops growing and the "
        "token keeps its gradient; weighed less, the weight falls below 1.",
    )
    return TextTable(title, "", "Rule", HEADINGS, rows, notes)


def _properties(name: str) -> tuple[str, ...]:
    """The cells of a rule's own record."""
    rule = known(name)
    return rule.row.cells if isinstance(rule, Rule) and rule.row is not None else (UNKNOWN,) * 5
