"""Objects of other packages, by import path or by an entry point of an installed package.

Importing runs code, so the caller decides which sources to trust: the command line, the user's environment and
installed packages; never a file that somebody else may have written.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

from cppo_lab.errors import UserError, one_line

# Groups of entry points; those of rules: rules.py.
CORE_GROUP, LAUNCHER_GROUP = "cppo_lab.cores", "cppo_lab.launchers"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # a name in the configuration
PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True)
class EntryPoints(Mapping[str, str]):
    """The entry points of installed packages in a group: name -> `package.module:name`. Imports none of them.

    A look-up raises UserError for a name that two packages give to different objects, and for a name that is not valid
    in a configuration; other names are not affected. `packages`: name -> `package.module:name` -> the package.
    """

    group: str
    packages: Mapping[str, Mapping[str, str]]

    def __getitem__(self, name: str) -> str:
        paths = self.packages[name]
        listed = " and ".join(f"{path} of package {package}" for path, package in paths.items())
        if not NAME.fullmatch(name):
            raise UserError(
                f"entry point {name!r} of {self.group!r} ({listed}): a name has letters, digits, '_', '.' and '-', at "
                "most 64: rename it in its package"
            )
        if len(paths) > 1:
            raise UserError(
                f"entry point {name!r} of {self.group!r} is both {listed}: uninstall one of the packages"
            )
        return next(iter(paths))

    def __contains__(self, name: object) -> bool:
        return name in self.packages

    def __iter__(self) -> Iterator[str]:
        return iter(self.packages)

    def __len__(self) -> int:
        return len(self.packages)


@cache
def entry_points(group: str) -> Mapping[str, str]:
    """The entry points in a group, see `EntryPoints`."""
    # Reads the folders of all packages, so it runs only when a name outside the product is looked up.
    from importlib import metadata

    packages: dict[str, dict[str, str]] = {}
    for point in metadata.entry_points(group=group):
        package = "unknown" if point.dist is None else point.dist.name
        packages.setdefault(point.name, {}).setdefault(point.value, package)
    return EntryPoints(group, packages)


def resolve(path: str) -> Any:
    """The object at `package.module:name`. Raises whatever its import raises."""
    module, _, name = path.partition(":")
    target = importlib.import_module(module)  # noqa: TID251  the caller vouches for the name
    for part in name.split("."):
        target = getattr(target, part)
    return target


def load(path: str, what: str) -> Any:
    """The object at `package.module:name`; `what` names it in messages.

    Raises UserError if it cannot be imported, also if its module calls sys.exit.
    """
    if not PATH.fullmatch(path):
        raise UserError(f"{what}={path!r} must be package.module:name")
    try:
        return resolve(path)
    except SystemExit as error:
        raise UserError(
            f"{what}={path!r} cannot be imported: its module calls sys.exit({error.code!r}) as it is imported: remove "
            "that call, or put it under `if __name__ == '__main__'`"
        ) from error
    except Exception as error:
        raise UserError(
            f"{what}={path!r} cannot be imported ({type(error).__name__}: {one_line(str(error))}): install its "
            "package, or put its folder on PYTHONPATH"
        ) from error


@dataclass(frozen=True)
class Plugin:
    """The record of a core or a launcher called `name`, ours or another package's; `KIND` says which in messages.

    Fields that are `package.module:name` are imported when they are needed.
    """

    KIND: ClassVar[str]
    name: str

    def load(self, part: str) -> Any:
        """What the field `part` names, or None.

        Raises ModuleNotFoundError if a package is not installed, UserError if another package's cannot be imported.
        """
        path = getattr(self, part)
        if path is None or path.startswith("cppo_lab."):
            return path and resolve(path)
        return load(path, f"{part} of {self.KIND} {self.name!r}")

    @classmethod
    def at(cls, path: str, name: str) -> Self:
        """The record called `name` at `package.module:name`.

        Raises UserError if it cannot be imported, or is none of this kind and name.
        """
        record = load(path, cls.KIND)
        if not isinstance(record, cls):
            expected = f"{cls.__module__}.{cls.__name__}"
            raise UserError(f"{cls.KIND} {name!r}: {path} is a {type(record).__name__}, not a {expected}")
        if record.name != name:
            raise UserError(
                f"{cls.KIND} {name!r}: {path} is the record of {record.name!r}: one of the names is wrong"
            )
        return record
