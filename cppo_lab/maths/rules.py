"""The rules as functions: name -> function, from the records in `cppo_lab.rules`.

Every rule is `fn(tokens: Tokens, *, <constants>) -> RuleOutput`; the constants are plain keyword scalars.
"""

from collections.abc import Callable
from typing import cast

from cppo_lab import rules
from cppo_lab.maths.tokens import RuleOutput

__all__ = ["RULES", "RuleOutput", "get_rule"]

RULES: dict[str, Callable[..., RuleOutput]] = {name: rule.load for name, rule in rules.RULES.items()}


def get_rule(name: str, path: str | None = None) -> Callable[..., RuleOutput]:
    """The rule called `name`; `path` is the import path of a rule of another package, see `cppo_lab.rules`.

    Raises:
        ValueError: no such rule; the message lists the valid names.
        UserError: a rule of another package that cannot be loaded.
    """
    if path is None and name not in RULES:
        raise ValueError(f"rule={name!r} is unknown: choose one of {sorted(RULES)}")
    return cast(Callable[..., RuleOutput], rules.rule_of(name, path).load)
