"""Text that a model wrote, or that somebody put into a data set, as a page shows it: visible, and of bounded length."""

import re

# Controls but for line end and tab; what turns the direction of text or takes no room; lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with every control written out, such as ⟨U+202E⟩: none of them acts on the page."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def shortened(text: str, most: int) -> str:
    """`visible` text of at most about `most` characters: a longer one's middle is left out, which is said there."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters are left out …]\n{text[-half:]}"
    return visible(text)
