"""Other packages: their objects, by import path or entry point; what is missing and how to install it; models.

Importing runs code, so the caller decides which sources to trust: the command line, the user's environment and
installed packages; never a file that somebody else may have written.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import pkgutil
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import unquote, urlsplit

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


def _require_path(path: str, what: str) -> None:
    if not PATH.fullmatch(path):
        raise UserError(f"{what}={path!r} must be package.module:name")


def load(path: str, what: str) -> Any:
    """The object at `package.module:name`; `what` names it in messages.

    Raises UserError if it cannot be imported, also if its module calls sys.exit.
    """
    _require_path(path, what)
    try:
        return pkgutil.resolve_name(path)
    except SystemExit as error:
        raise UserError(
            f"{what}={path!r} cannot be imported: its module calls sys.exit({error.code!r}) as it is imported: remove "
            "that call, or put it under `if __name__ == '__main__'`"
        ) from error
    except Exception as error:
        missing = isinstance(error, ImportError)
        how = (
            "install its package, or put its folder on PYTHONPATH"
            if missing
            else "mend the name, or its module"
        )
        why = f"{type(error).__name__}: {one_line(str(error))}"
        raise UserError(f"{what}={path!r} cannot be imported ({why}): {how}") from error


def digest_of(*files: Path) -> str:
    """Twelve hex digits that identify the contents of files in their order. Raises OSError."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def code_digest(path: str, what: str) -> str:
    """`digest_of` the code at `package.module:name`: the file of its module or, in a package, all of the package's
    Python files. Imports the packages above the module, and not the module; `what` names it in messages.

    Raises UserError if there is no such module, or it has no source.
    """
    _require_path(path, what)
    module = path.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
        package = importlib.util.find_spec(module.partition(".")[0])
    except (Exception, SystemExit):  # noqa: BLE001  whatever a package raises as it is imported
        spec = package = None
    origin = Path(spec.origin) if spec and spec.origin else None
    if origin is None or package is None or origin.suffix != ".py":
        raise UserError(
            f"{what}={path!r}: no source of module {module!r} is found: install its package, or put its folder on "
            "PYTHONPATH"
        )
    folders = package.submodule_search_locations or []
    return digest_of(*(sorted(file for folder in folders for file in Path(folder).rglob("*.py")) or [origin]))


T = TypeVar("T")


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
            return path and pkgutil.resolve_name(path)
        return load(path, f"{part} of {self.KIND} {self.name!r}")

    def settings_kind(self, base: type[T]) -> type[T]:
        """The class of its settings. Raises as `load`, and UserError if that is no subclass of `base`."""
        kind = self.load("settings")
        if not (isinstance(kind, type) and issubclass(kind, base)):
            named = f"{base.__module__}.{base.__name__}"
            raise UserError(f"settings of {self.KIND} {self.name!r} is {kind!r}: name a subclass of {named}")
        return kind

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


# How to install what is missing, from where this package was installed: no package index has it under its name.

DISTRIBUTION = "cppo-lab"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_MODULES = {  # that are called otherwise than the package which has them, where that is not installed
    "huggingface_hub": "huggingface-hub",
    "math_verify": "math-verify",
    "psycopg2": "psycopg2-binary",
    "pynvml": "nvidia-ml-py",
    "transfer_queue": "TransferQueue",
    "yaml": "pyyaml",
    "hydra": "hydra-core",
    "omegaconf": "hydra-core",
    "mlflow": "mlflow-skinny",
}


def remedy(module: str) -> str:
    """A command that installs `module`: the extra that has it from the folder or address that this package is from;
    else the package itself, in the versions that go with this package."""
    from packaging.utils import canonicalize_name

    package = _MODULES.get(module, module)
    for requirement, extra in _requirements():
        match = _NAME.match(requirement)
        if match and canonicalize_name(match[0]) == canonicalize_name(package):
            return (extra and _from_folder(extra)) or f"pip install {shlex.quote(requirement)}"
    return f"pip install {shlex.quote(package)}"


def install_extra(extra: str) -> str:
    """A command that installs an extra: from the folder that this package is from, else its packages by name.

    `pip install cppo-lab[...]` is none: no index has the package.
    """
    if folder := _from_folder(extra):
        return folder
    requirements = [requirement for requirement, of in _requirements() if of == extra]
    if not requirements:
        return f"install this package again with its extra {extra!r}"
    return f"pip install {' '.join(map(shlex.quote, requirements))}"


def _from_folder(extra: str) -> str:
    """The same from the folder that this package was installed from; empty if it is from elsewhere, or has gone."""
    from importlib import metadata

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        origin = json.loads(text) if text else {}
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    url = origin.get("url", "") if isinstance(origin, dict) else ""
    if not url.startswith("file:"):
        return ""
    folder = Path(unquote(urlsplit(url).path))
    if not (folder / "pyproject.toml").is_file():
        return ""  # a wheel that may have gone: the extra's packages are named instead
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{folder}[{extra}]')}"


def _requirements() -> list[tuple[str, str]]:
    """(requirement, extra) of each package that this package may need, itself left out; no extra: always."""
    from importlib import metadata

    try:
        required = metadata.distribution(DISTRIBUTION).requires or []
    except metadata.PackageNotFoundError:
        return []
    requirements = []
    for text in required:
        requirement, _, marker = text.partition(";")
        extra = _EXTRA.search(marker)
        if not requirement.strip().startswith(DISTRIBUTION):
            requirements.append((requirement.strip(), extra[1] if extra else ""))
    return requirements


# What a machine has of what a run needs.

OK, WARNING, MISSING, UNNEEDED = "ok", "warning", "missing", "not needed"


@dataclass(frozen=True)
class Check:
    """`name` is what was checked, `found` what is there; `remedy` says what to do if there is a problem.

    MISSING keeps a run from starting; WARNING does not.
    """

    name: str
    status: str
    found: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """What was checked, what is there, and the remedy."""
        return f"{self.name}: {self.found}" + (f": {self.remedy}" if self.remedy else "")

    @property
    def line(self) -> str:
        """The check as a line of text."""
        return f"{self.status:<10}  {self.text}"


@dataclass(frozen=True)
class Requirement:
    """A distribution, its supported versions, and how to install it.

    `needed_by` names the setting that needs it; empty: this run does not. With `strict`, an unsupported version keeps a
    run from starting; otherwise it is a warning.
    """

    name: str
    versions: str
    needed_by: str
    extra: str = ""  # extra of this package that includes it
    strict: bool = False
    remedy: str = ""  # in place of pip with name and versions

    def check(self) -> Check:
        """Compare with what is installed."""
        # Every command reads this module, few ask for versions.
        from importlib import metadata

        from packaging.specifiers import SpecifierSet

        # An interrupted installation leaves a folder without a version, or, for `importlib_metadata`, without a file.
        installed = None
        with contextlib.suppress(metadata.PackageNotFoundError, FileNotFoundError):
            installed = metadata.version(self.name)
        if installed and SpecifierSet(self.versions).contains(installed, prereleases=True):
            return Check(self.name, OK, installed)
        wrong = f"{installed} is outside {self.versions}" if installed else "not installed"
        if not self.needed_by:
            return Check(self.name, UNNEEDED, wrong)
        extra = install_extra(self.extra) if self.extra else ""
        remedy = self.remedy or extra or f"pip install '{self.name}{self.versions}'"
        if not installed:
            return Check(self.name, MISSING, f"{wrong}, needed by {self.needed_by}", remedy)
        return Check(self.name, MISSING if self.strict else WARNING, wrong, remedy)


# Where downloaded models are. Imports nothing of the hub's library, so that a launcher can ask.

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def hub_cache() -> Path:
    """Where huggingface_hub keeps downloads, by its documented variables."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser() / "hub"


def snapshot(repository: str, revision: str) -> Path:
    """Where the cache keeps a revision of a repository (a branch, as it was downloaded last, or a commit)."""
    cache = hub_cache() / f"models--{repository.replace('/', '--')}"
    try:
        commit = (cache / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        commit = revision
    return cache / "snapshots" / commit


def lacking(folder: Path) -> list[str]:
    """The files that a model's folder lacks: description, tokenizer, weights. A link that leads nowhere is no file."""
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        missing.append("tokenizer.json")
    try:
        shards = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
    except FileNotFoundError:
        shards = [WEIGHTS]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [*missing, INDEX]
    return missing + [name for name in sorted(set(map(str, shards))) if not (folder / name).is_file()]
