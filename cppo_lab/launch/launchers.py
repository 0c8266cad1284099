"""The launchers: one record each. A new one costs its module, its record and its YAML (docs/architecture.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from cppo_lab.errors import unknown
from cppo_lab.launch.base import Launcher, LauncherSpec
from cppo_lab.plugins import load


@dataclass(frozen=True)
class LauncherRecord:
    """What the product knows of a launcher. Its module is imported when it launches.

    function: `package.module:name` of a `Launcher`.
    settings: `package.module:name` of its LauncherSpec.
    """

    name: str
    function: str
    settings: str = f"{LauncherSpec.__module__}:{LauncherSpec.__name__}"


LAUNCHERS: Mapping[str, LauncherRecord] = MappingProxyType(
    {
        one.name: one
        for one in (
            LauncherRecord("inline", "cppo_lab.launch.inline:launch_inline"),
            LauncherRecord("local", "cppo_lab.launch.local:launch_local"),
            LauncherRecord(
                "slurm",
                "cppo_lab.launch.slurm.submit:launch_slurm",
                settings="cppo_lab.launch.slurm.settings:SlurmSpec",
            ),
        )
    }
)


def launcher_kind(name: object) -> type[LauncherSpec]:
    """The settings that the launcher called `name` has; those of every launcher for a name that there is not."""
    record = LAUNCHERS.get(name) if isinstance(name, str) else None
    return LauncherSpec if record is None else cast(type[LauncherSpec], load(record.settings, "launcher"))


def load_launcher(name: str) -> Launcher:
    """The launcher called `name`.

    Raises UserError if there is none.
    """
    if name not in LAUNCHERS:
        raise unknown("launcher", name, LAUNCHERS)
    return cast(Launcher, load(LAUNCHERS[name].function, "launcher"))
