"""Text that is sent to the tracking store has no passwords."""

import re

# A password may have any character but these. A text may end before its `@`. Where a user's name stands alone, as in
# https://TOKEN@host, it may be a token.
_WITH_PASSWORD = re.compile(r"""(://[^\s/:@"'<>]*:)(?:[^\s"'<>]*(@)|[^\s"'<>]*\Z)""")
_ALONE = re.compile(r"""(://)[^\s/:@"'<>]+(@)""")
_QUERY = re.compile(r"""([?&]password=)[^&\s"'<>]+""")
MASK = "***"


def masked(text: str) -> str:
    """The text with whatever gives access masked in its URLs: `://user:***@host`, `://***@host`,
    `?password=***`.
    """
    hidden = _ALONE.sub(rf"\1{MASK}\2", _WITH_PASSWORD.sub(rf"\1{MASK}\2", text))
    return _QUERY.sub(rf"\1{MASK}", hidden)
