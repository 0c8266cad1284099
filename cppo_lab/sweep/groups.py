"""The configuration groups and their options. Imports the standard library alone: the help text lists them."""

from importlib import resources

CONF = resources.files("cppo_lab") / "conf"


def groups() -> dict[str, list[str]]:
    """Configuration groups and their options."""
    return {
        folder.name: sorted(
            file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
        )
        for folder in sorted(CONF.iterdir(), key=lambda entry: entry.name)
        if folder.is_dir()
    }
