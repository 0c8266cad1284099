"""Masking what gives access: passwords, tokens and keys in whatever is shown or kept."""

import re

# A password may have any character but these. A text may end before its `@`; what it ends in is a port if it is all
# digits. Where a user's name stands alone, as in https://TOKEN@host, it may be a token.
_WITH_PASSWORD = re.compile(r"""(://[^\s/:@"'<>]*:)(?:[^\s"'<>]*(@)|(?!\d+(?:/|\Z))[^\s"'<>]*\Z)""")
_ALONE = re.compile(r"""(://)[^\s/:@"'<>]+(@)""")
_QUERY = re.compile(
    r"""([?&](?:password|passwd|pwd|secret|token|access_token|api_?key|signature|sig|x-amz-[\w-]+)=)[^&\s"'<>]+""",
    re.I,
)
# Words that end the name of a setting whose value gives access: HF_TOKEN=..., --api-key ..., "password": "...".
_SECRET = (
    r"(?i:password|passwd|passphrase|secret|secret[_-]?key|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|credentials?)"
)
_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^\s"',;&<>*][^\s"',;&<>]*)"""
# A name is looked at as far as 60 signs: a stranger's text must not make this slow. /etc/passwd is a path.
_NAMED = re.compile(
    rf"""((?<!/)(?:\b[\w-]{{0,60}}?{_SECRET}|\b[A-Z0-9_]{{0,60}}TOKEN)["']?\s{{0,9}}[=:]\s{{0,9}}){_VALUE}"""
)
_OPTION = re.compile(rf"(--(?:[\w-]{{0,60}}-)?(?:{_SECRET}|token)(?:=|[ \t]{{1,9}})){_VALUE}")
_BEARER = re.compile(r"(\bBearer[ \t]+|\bAuthorization:[ \t]*\w+[ \t]+)[A-Za-z0-9._~+/=-]{8,}", re.I)
# What services begin their tokens with: Hugging Face, GitHub, GitLab, Slack, OpenAI, AWS.
_KNOWN = re.compile(
    r"\b(hf_(?=[A-Za-z0-9]{30})|(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|AKIA|ASIA)(?=[A-Za-z_-]{0,60}[0-9]))"
    r"[A-Za-z0-9_-]{12,}"
)
MASK = "***"


def redacted(text: str) -> str:
    """A URI, or any text, with whatever gives access masked: in URIs, settings, options, headers, and known tokens.

    `://user:***@host`, `://***@host`, `?password=***`, `HF_TOKEN=***`, `--api-key ***`, `Bearer ***`, `hf_***`.
    """
    hidden = _ALONE.sub(rf"\1{MASK}\2", _WITH_PASSWORD.sub(rf"\1{MASK}\2", text))
    for pattern in (_NAMED, _OPTION):
        hidden = pattern.sub(_masked_value, hidden)
    for pattern in (_QUERY, _BEARER, _KNOWN):
        hidden = pattern.sub(rf"\1{MASK}", hidden)
    return hidden


def _masked_value(found: "re.Match[str]") -> str:
    """Quotes stay: the text may be JSON."""
    quote = found[2][0] if found[2][0] in "\"'" else ""
    return f"{found[1]}{quote}{MASK}{quote}"
