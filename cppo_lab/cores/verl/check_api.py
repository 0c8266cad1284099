"""Checks that the installed verl is the version that this core was written for: its version, and every touch point.

Supported: verl >=0.9.1,<0.9.2; the touch points were written for and tested with 0.9.1. To move to another version, run
`check_api()`, fix what it names, then run the tests marked `verl`.
"""

import ast
import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cppo_lab.cores.verl.api_contract import API_CONTRACT, FIELDS, PRIVATE, VLLM, VLLM_WORKER, ContractItem

VERL_RANGE = ">=0.9.1,<0.9.2"
_FIRST, _BELOW = (0, 9, 1), (0, 9, 2)
# Modules that cannot be imported without vLLM: their signatures are read from the source.
_NEEDS_VLLM = {VLLM, VLLM_WORKER}


def version_problem() -> str | None:
    """An error message if the installed version of verl is not supported, or None."""
    installed = version("verl")
    release = tuple(int(part) for part in installed.split(".")[:3] if part.isdigit())
    if _FIRST <= release < _BELOW:
        return None
    return f"verl {installed} is installed, but {VERL_RANGE} is supported: pip install 'verl{VERL_RANGE}'"


def check_api(points: tuple[ContractItem, ...] = API_CONTRACT) -> list[str]:
    """One line for every touch point that the installed verl lacks or has changed; empty if there are none."""
    return [problem for point in points if (problem := _problem(point)) is not None]


def _problem(point: ContractItem) -> str | None:
    from_source = point.module in _NEEDS_VLLM and find_spec("vllm") is None
    read: Callable[[ContractItem], tuple[str, ...]] = _in_source if from_source else _installed
    try:
        parameters = read(point)
    except (ImportError, AttributeError) as missing:
        return f"{point.name} ({point.kind}) is missing: {missing}"
    if point.kind == PRIVATE and set(point.parameters) <= set(parameters):
        return None
    if point.kind != PRIVATE and parameters == point.parameters:
        return None
    return f"{point.name} ({point.kind}) has changed: expected {list(point.parameters)}, found {list(parameters)}"


def _installed(point: ContractItem) -> tuple[str, ...]:
    """Parameter, field or key names of a touch point as installed.

    Raises ImportError or AttributeError if it does not exist.
    """
    target: Any = importlib.import_module(point.module)  # noqa: TID251  a literal name of the touch points
    for part in point.attribute.split("."):
        target = _plain(getattr(target, part))
    if point.kind == PRIVATE:
        return tuple("/".join(key) for key in target)
    if point.kind == FIELDS:
        return tuple(target.model_fields)
    # Ray adds parameters to the methods of actor classes.
    return tuple(name for name in inspect.signature(target).parameters if not name.startswith("_ray_"))


def _plain(target: Any) -> Any:
    """The class behind a Ray actor class; anything else as it is."""
    actor = getattr(target, "__ray_metadata__", None)
    return target if actor is None else actor.modified_class


def _in_source(point: ContractItem) -> tuple[str, ...]:
    """Parameter names of a method from the source of its module, for a module that cannot be imported."""
    package, *inner = point.module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"no package {package}")
    try:
        source = Path(spec.origin).parent.joinpath(*inner).with_suffix(".py").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ImportError(f"no module {point.module}") from None
    body: list[ast.stmt] = ast.parse(source).body
    for part in point.attribute.split("."):
        defined = (
            node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        )
        node = next((node for node in defined if node.name == part), None)
        if node is None:
            raise AttributeError(f"no {part} in {point.module}")
        body = node.body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return tuple(argument.arg for argument in node.args.args)


def register_rollout_adapter(name: str, target: str) -> None:
    """Makes `rollout.name=name` known to verl's training workers: `target` is the adapter class's dotted name.

    verl has no public way to add an adapter (verl/workers/rollout/base.py).
    """
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY

    _ROLLOUT_REGISTRY[(name, "async")] = target
