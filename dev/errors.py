"""The errors shown to users of the programs in this folder."""

import sys
from collections.abc import Callable


class DevError(Exception):
    """An error that the user can fix; the text is one line that says what is wrong and how to fix it."""


def reported(program: str, work: Callable[[], int], status: int = 1) -> int:
    """The exit status of `work`; `status` if the user can fix an error, which is printed."""
    try:
        return work()
    except DevError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return status
