"""What a launcher is, and its configuration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from cppo_lab.errors import unknown
from cppo_lab.run import Attempt
from cppo_lab.spec import Count, Spec


class LauncherSpec(Spec):
    """How runs are started."""

    name: Literal["inline", "local"]
    workers: Annotated[int, Field(ge=1)] | None
    threads: Count


@dataclass(frozen=True)
class Event:
    """Something a launcher saw: `kind` is `started`, `progress`, `ended`."""

    kind: str
    attempt: Attempt


class Launcher(Protocol):
    """Run every attempt, in any order, calling `report` as things happen. Returns when all have ended.

    An attempt that fails does not stop the others.
    """

    def __call__(
        self, attempts: Sequence[Attempt], spec: LauncherSpec, report: Callable[[Event], None]
    ) -> None: ...


def load_launcher(name: str) -> Launcher:
    """The launcher called `name`."""
    if name == "inline":
        from cppo_lab.launch.inline import launch_inline

        return launch_inline
    if name == "local":
        from cppo_lab.launch.local import launch_local

        return launch_local
    raise unknown("launcher", name, ["inline", "local"])
