"""The errors shown to users of the programs in this folder."""

import sys
from collections.abc import Callable
from typing import NoReturn


class DevError(Exception):
    """An error that the user can fix; the text is one line that says what is wrong and how to fix it."""


def run(program: str, main: Callable[[], int], status: int = 1) -> NoReturn:
    """Exit with the status of `main`; with `status` if the user can fix an error, which is printed."""
    try:
        sys.exit(main())
    except DevError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        sys.exit(status)
