"""Table 2: what distinguishes the rules of the registry. A test holds the names against the registry, which needs
torch and is therefore not imported here. A rule that is not described here has a row of dashes once runs use it.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from cppo_lab.reports.names import OURS, display_name
from cppo_lab.reports.text_tables import TextRow, TextTable

HEADINGS = ("Bounds", "Decides per", "Position", "Prefix", "Beyond it", "In this study")
YES, NO, UNKNOWN = "yes", "no", "–"

# rule -> (what is bounded, what one decision covers, whether the limit depends on the token's position, whether it
# depends on the tokens before, what happens beyond the bound).
PROPERTIES: Mapping[str, tuple[str, str, str, str, str]] = MappingProxyType(
    {
        "grpo": ("ratio", "token", NO, NO, "clipped"),
        "ppo": ("ratio", "token", NO, NO, "clipped"),
        "dr_grpo": ("ratio", "token", NO, NO, "clipped"),
        "dppo": ("divergence", "token", NO, NO, "masked"),
        "cppo": ("divergence", "token", YES, YES, "masked"),
        "cppo_no_position_weight": ("divergence", "token", NO, YES, "masked"),
        "cppo_no_prefix_budget": ("divergence", "token", YES, NO, "masked"),
        "cppo_no_prefix_budget_shuffled": ("divergence", "token", "shuffled", NO, "masked"),
        "cppo_soft": ("divergence", "token", YES, YES, "weighed less"),
        "trm_max": ("largest divergence", "response", NO, NO, "masked"),
        "trm_avg": ("mean divergence", "response", NO, NO, "masked"),
        "trm_max_avg": ("largest, mean divergence", "response", NO, NO, "masked"),
        "cispo": ("ratio", "token", NO, NO, "capped"),
        "minpro": ("ratio x least prefix ratio", "token", NO, YES, "capped"),
        "gspo": ("mean ratio", "response", NO, NO, "clipped"),
        "geo_mean": ("ratio within a mean", "token", NO, NO, "clipped"),
        "sapo": ("ratio", "token", NO, NO, "weighed less"),
    }
)


def distinction_table(title: str, used: Collection[str]) -> TextTable:
    """All described rules, and further ones of `used`, which are those of the runs of the report."""
    others = sorted(set(used) - set(PROPERTIES))
    described = {**PROPERTIES, **dict.fromkeys(others, (UNKNOWN,) * 5)}
    rows = tuple(
        TextRow(display_name(rule), rule == OURS, (*properties, YES if rule in used else NO))
        for rule, properties in described.items()
    )
    notes = (
        "Position, Prefix: whether the limit of a token depends on where it stands, and on the tokens before it.",
        "Beyond it: masked, no objective; clipped, no gradient; capped, the coefficient stops growing and the "
        "token keeps its gradient; weighed less, the weight falls below 1.",
    )
    return TextTable(title, "", "Rule", HEADINGS, rows, notes)
