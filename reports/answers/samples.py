"""The texts that runs kept, for the page: as many as fit, shortened and made visible."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ShownSamples:
    """The samples on the page, ready for JSON; `left_out` counts those that exceeded the size limit."""

    prompts: tuple[str, ...]
    samples: tuple[dict[str, Any], ...]
    left_out: int

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"prompts": self.prompts, "samples": self.samples, "left": self.left_out}


def shown_samples(runs: Sequence[tuple[RunScore, RunAnswers]], most: int = MOST_BYTES) -> ShownSamples:
    """The samples of these runs that fit into `most` bytes. Each run's first answer to each problem at each step comes
    first, then its training groups, then further answers; later steps come first.
    """
    prompts: dict[str, int] = {}
    found, left_out, used, full = [], 0, 0, False
    for run, sample in _in_order(runs):
        if full:
            left_out += 1
            continue
        prompt = shortened(sample.prompt, LONGEST)
        entry = _plain(run, sample, prompts.get(prompt, len(prompts)))
        size = _size(entry) + (0 if prompt in prompts else _size(prompt))
        if used + size > most:
            full, left_out = True, left_out + 1
            continue
        prompts.setdefault(prompt, len(prompts))
        used += size
        found.append(entry)
    return ShownSamples(tuple(prompts), tuple(found), left_out)


def _in_order(runs: Sequence[tuple[RunScore, RunAnswers]]) -> Iterable[tuple[RunScore, Sample]]:
    rows = [
        (_rank(sample), -sample.step, number, sample.group or 0, sample.draw, run, sample)
        for number, (run, answers) in enumerate(runs)
        for texts in answers.texts
        for sample in texts.samples
    ]
    rows.sort(key=lambda row: row[:5])
    return ((row[5], row[6]) for row in rows)


def _rank(sample: Sample) -> int:
    return 1 if sample.kind == TRAINING else 0 if sample.draw == 0 else 2


def _plain(run: RunScore, sample: Sample, prompt: int) -> dict[str, Any]:
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
    }
    if sample.answer is not None:
        entry["answer"] = visible(sample.answer[:LONGEST_NAME])
    if sample.truth is not None:
        entry["truth"] = visible(sample.truth[:LONGEST_NAME])
    if sample.kind == TRAINING:
        entry |= {
            "group": sample.group,
            "reward": _digits(sample.reward),
            "advantage": _digits(sample.advantage),
        }
    return entry


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _size(entry: Mapping[str, Any] | str) -> int:
    return len(escape_json(entry)) + 1
