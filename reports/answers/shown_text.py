"""Makes untrusted text (from a model or a data set) safe for a page: every character visible, and of bounded length."""

import re

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
