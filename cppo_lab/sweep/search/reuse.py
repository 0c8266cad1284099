"""How the main sweep trains what a search has tuned."""

import shlex
from typing import cast

from cppo_lab.sweep.declare import Sweep, load_sweep
from cppo_lab.sweep.search.space import ELSEWHERE, Tuning

_NAMED = ("rule", "model", "core")  # by words of their own


def main_overrides(tuning: Tuning) -> tuple[str, ...] | None:
    """What makes `cppo launch main` train the runs of the search, all but the tuned keys, the core and the seeds; words
    for a shell. None if the main sweep has no variant of the search's rule.
    """
    main, rule = cast(Sweep, load_sweep("main")), tuning.base.run.rule.name
    if "rule" in tuning.space or rule not in main.variants:
        return None
    keys = {text: text.partition("=")[0].lstrip("+~") for text in tuning.fixed}
    settings = [
        text for text, key in keys.items() if key not in _NAMED and key.partition(".")[0] not in ELSEWHERE
    ]
    return tuple(map(shlex.quote, (f"variant={rule}", f"model={tuning.model}", *settings)))
