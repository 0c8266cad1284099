"""The settings of the container for runs of the Slurm launcher."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cppo_lab.spec import Spec

# Text without line breaks, since it becomes part of a line of the batch script.
Line = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$", max_length=4096)]

# A comma or a colon ends a mount for pyxis and Apptainer, and enroot reads the paths of mounts in a shell's quotes.
MISREAD = re.compile(r"""[,:"$`\\\x00-\x1f\x7f]""")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the job depends on, and those that its Python must not take from outside the image.
_OURS = re.compile(r"(SLURM|SLURMD|SUBMITIT|CPPO_OUTSIDE)(_|\Z)|PYTHONSAFEPATH\Z|PYTHONNOUSERSITE\Z")
_REMEDY = "write SOURCE:TARGET or SOURCE:TARGET:ro, both absolute"


class ContainerSpec(Spec):
    """The image that contains a run's Python, and the parts of the machine mounted into it.

    `runtime` None: no container. `mounts` are SOURCE:TARGET or SOURCE:TARGET:ro, in addition to the folders that the
    run needs. `environment` lists NAME, to pass a variable from outside, overriding the image, or NAME=VALUE.
    """

    runtime: Literal["pyxis", "apptainer"] | None
    image: Line | None
    mounts: tuple[Line, ...]
    environment: tuple[Line, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.runtime is None:
            for name in ("image", "mounts", "environment"):
                if value := getattr(self, name):
                    raise ValueError(
                        f"{name}={value!r} has no use without a runtime: set launcher.container.runtime to pyxis or "
                        "apptainer"
                    )
            return self
        if self.image is None or not self.image.strip():
            raise ValueError(
                f"runtime={self.runtime!r} with image={self.image!r}: set launcher.container.image to a file or an "
                "address of an image"
            )
        if self.image.startswith("-"):
            raise ValueError(f"image={self.image!r} would be read as an option: write ./{self.image}")
        targets = [_require_mount(mount) for mount in self.mounts]
        for target in targets:
            if targets.count(target) > 1:
                raise ValueError(f"mounts: two have the target {target}: remove one")
        names = [_require_variable(entry) for entry in self.environment]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"environment: {name} appears twice: remove one")
        return self


NO_CONTAINER = ContainerSpec(runtime=None, image=None, mounts=(), environment=())


def _require_mount(mount: str) -> str:
    """The target of a mount. Raises ValueError for text that a runtime would misread."""
    parts = mount.split(":")
    if len(parts) == 3 and parts[2] in ("ro", "rw"):
        parts.pop()
    if len(parts) != 2:
        raise ValueError(f"mounts: {mount!r} is not two paths with a colon between: {_REMEDY}")
    for path in parts:
        if found := MISREAD.search(path):
            raise ValueError(
                f"mounts: {path!r} has {found[0]!r} in it, which container runtimes misread: mount "
                "the folder above it, or a path without it"
            )
        if not path.startswith("/") or ".." in path.split("/") or path != path.strip():
            raise ValueError(f"mounts: {mount!r}: {path!r} is not an absolute path: {_REMEDY}")
    if not parts[1].strip("/"):
        raise ValueError(f"mounts: {mount!r} would hide the whole image: {_REMEDY}")
    return "/" + parts[1].strip("/")


def _require_variable(entry: str) -> str:
    """The name of a variable. Raises ValueError if it is not a valid name, or must not be set by the user."""
    name = entry.partition("=")[0]
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"environment: {entry!r}: write NAME, or NAME=VALUE")
    if _OURS.match(name):
        raise ValueError(f"environment: {name} is set by Slurm and the launcher: remove it")
    return name
