"""What is installed and downloaded, and how to install what is missing, from where this package was installed: no
package index has it under its name.
"""

import json
import os
import re
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
    needed = _requirement(_MODULES.get(module, module))
    if needed is None:
        return f"pip install {shlex.quote(_MODULES.get(module, module))}"
    requirement, extra = needed
    if extra and (command := _from_folder(extra)):
        return command
    return f"pip install {shlex.quote(requirement)}"


def install_extra(extra: str) -> str:
    """A command that installs an extra: from the folder that this package is from, else its packages one by one.

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
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        origin = json.loads(text) if text else {}
    except (PackageNotFoundError, ValueError):
        return ""
    url = origin.get("url", "") if isinstance(origin, dict) else ""
    if not url.startswith("file:"):
        return ""
    folder = Path(unquote(urlsplit(url).path))
    if not (folder / "pyproject.toml").is_file():
        return ""  # a wheel that may have gone: its packages are named one by one
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{folder}[{extra}]')}"


def _requirement(name: str) -> tuple[str, str] | None:
    """What this package requires of another, with the extra that has it (empty: always); None for a stranger."""
    for requirement, extra in _requirements():
        match = _NAME.match(requirement)
        if match and _plain(match[0]) == _plain(name):
            return requirement, extra
    return None


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements() -> list[tuple[str, str]]:
    """(requirement, extra) of each package that this package may need, itself left out."""
    try:
        required = distribution(DISTRIBUTION).requires or []
    except PackageNotFoundError:
        return []
    requirements = []
    for text in required:
        requirement, _, marker = text.partition(";")
        extra = _EXTRA.search(marker)
        if not requirement.strip().startswith(DISTRIBUTION):
            requirements.append((requirement.strip(), extra[1] if extra else ""))
    return requirements


# Where downloaded models are. Imports nothing of the hub's library, so that a launcher can ask.


INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def hub_cache() -> Path:
    """Where huggingface_hub keeps downloads, by its documented variables."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
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
