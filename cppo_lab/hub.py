"""Where downloaded models are. Imports nothing of the hub's own library, so that a launcher can ask."""

import os
from pathlib import Path


def hub_cache() -> Path:
    """Where huggingface_hub keeps downloads, by its documented variables."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser() / "hub"
