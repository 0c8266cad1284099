"""The `cppo` command. Only the standard library is imported before a subcommand is chosen."""

import os
import sys
from collections.abc import Sequence

from cppo_lab.cli.parser import parse
from cppo_lab.errors import UserError

EXTRAS = {  # of pyproject.toml, by the packages that they bring
    "train": ("torch", "numpy", "submitit"),
    "report": ("pandas", "matplotlib", "jinja2"),
    "search": ("optuna",),
    "data": ("pyarrow", "huggingface_hub", "math_verify"),
    "verl": ("verl", "ray", "tensordict", "transformers", "transfer_queue"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 not everything is, 2 bad input, 130 interrupted,
    141 the reader of its output has gone."""
    options = parse(arguments)
    try:
        code: int = options.command(options)
    except UserError as error:
        print(f"cppo: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cppo_lab"):
            raise
        print(f"cppo: error: {_missing_package(error.name or '')}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `cppo plan ... | head`
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # Python flushes it once more as it ends
        return 141
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"cppo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cppo: interrupted; the same command continues with what is left", file=sys.stderr)
        return 130
    return code


def _missing_package(name: str) -> str:
    needed = next((extra for extra, names in EXTRAS.items() if name.split(".")[0] in names), "all")
    return f"package {name!r} is not installed: pip install 'cppo-lab[{needed}]'"
