"""Where downloaded models are. Imports nothing of the hub's own library, so that a launcher can ask."""

import json
import os
from pathlib import Path

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
    found = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        found.append("tokenizer.json")
    try:
        shards = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
    except FileNotFoundError:
        shards = [WEIGHTS]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [*found, INDEX]
    return found + [name for name in sorted(set(map(str, shards))) if not (folder / name).is_file()]
