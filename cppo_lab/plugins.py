"""What other packages bring: an object by its import path, or by an entry point of an installed package.

Importing runs code, so the caller decides whose word counts: the command line, the user's environment, a package that
the user has installed; never a file that somebody else may have written.
"""

import importlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from cppo_lab.errors import UserError, one_line

PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


@cache
def entry_points(group: str) -> Mapping[str, str]:
    """The entry points of installed packages in a group: name -> `package.module:name`. Imports none of them.

    Raises UserError for a name that two packages give to different objects.
    """
    # Reads the folders of all packages: only when somebody asks for a foreign name.
    from importlib import metadata

    found: dict[str, str] = {}
    for point in metadata.entry_points(group=group):
        if found.setdefault(point.name, point.value) != point.value:
            raise UserError(
                f"entry point {point.name!r} of {group!r} is both {found[point.name]} and {point.value}: uninstall one "
                "of the packages"
            )
    return found


def resolve(path: str) -> Any:
    """The object at `package.module:name`. Raises whatever its import raises."""
    module, _, name = path.partition(":")
    found = importlib.import_module(module)  # noqa: TID251  the caller answers for the name
    for part in name.split("."):
        found = getattr(found, part)
    return found


def load(path: str, what: str) -> Any:
    """The object at `package.module:name`; `what` names it in messages.

    Raises UserError if it cannot be imported.
    """
    if not PATH.fullmatch(path):
        raise UserError(f"{what}={path!r} must be package.module:name")
    try:
        return resolve(path)
    except Exception as error:
        raise UserError(
            f"{what}={path!r} cannot be imported ({type(error).__name__}: {one_line(str(error))}): install its "
            "package, or put its folder on PYTHONPATH"
        ) from error
