"""The texts that runs kept, for the page: as many as fit, shortened and made visible."""

import re
from collections.abc import Sequence
from typing import Any

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.selection import RunScore
from cppo_lab.answers.texts import TRAINING, Sample
from cppo_lab.reports.escapes import escape_json
from cppo_lab.reports.names import display_name

# Control characters except newline and tab; bidirectional controls and zero-width characters; lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with every control character written out, such as ⟨U+202E⟩, so that none takes effect on the page."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def shortened(text: str, most: int) -> str:
    """`visible` text of about `most` characters at most; the middle of a longer text is replaced by a note."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters are left out …]\n{text[-half:]}"
    return visible(text)


MOST_BYTES = 2_000_000  # of all texts of a page, as embedded in it
LONGEST = 6_000  # characters of one prompt or response
LONGEST_NAME = 200  # characters of an answer, an id or a stop reason


def shown_samples(runs: Sequence[tuple[RunScore, RunAnswers]], most: int = MOST_BYTES) -> dict[str, Any]:
    """The samples of these runs that fit into `most` bytes, as JSON; `left` counts the others. Each run's first answer
    to each problem at each step comes first, then its training groups, then further answers; later steps come first.
    """
    rows = [
        (number, sample)
        for number, (_, answers) in enumerate(runs)
        for texts in answers.texts
        for sample in texts.samples
    ]

    def order(row: tuple[int, Sample]) -> tuple[int, ...]:
        number, sample = row
        rank = 1 if sample.kind == TRAINING else 0 if sample.draw == 0 else 2
        return rank, -sample.step, number, sample.group or 0, sample.draw

    prompts: dict[str, int] = {}
    shown, used = [], 0
    for number, sample in sorted(rows, key=order):
        prompt = shortened(sample.prompt, LONGEST)
        entry = _plain(runs[number][0], sample, prompts.get(prompt, len(prompts)))
        new = [entry] if prompt in prompts else [entry, prompt]
        used += sum(len(escape_json(part)) + 1 for part in new)
        if used > most:
            break
        prompts.setdefault(prompt, len(prompts))
        shown.append(entry)
    return {"prompts": list(prompts), "samples": shown, "left": len(rows) - len(shown)}


def _plain(run: RunScore, sample: Sample, prompt: int) -> dict[str, Any]:
    named = {"answer": sample.answer, "truth": sample.truth}
    entry: dict[str, Any] = {
        "model": run.model,
        "method": display_name(run.variant),
        "seed": run.seed,
        "step": sample.step,
        "problem": visible(sample.problem[:LONGEST_NAME]),
        "draw": sample.draw,
        "prompt": prompt,
        "text": shortened(sample.response, LONGEST),
        "right": sample.right,
        "length": sample.length,
        "stop": visible(sample.stop[:LONGEST_NAME]),
        **{key: visible(text[:LONGEST_NAME]) for key, text in named.items() if text is not None},
    }
    if sample.kind == TRAINING:
        entry["group"] = sample.group
        for key, value in (("reward", sample.reward), ("advantage", sample.advantage)):
            entry[key] = None if value is None else float(f"{value:.4g}")
    return entry
