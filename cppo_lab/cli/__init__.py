"""The `cppo` command. Only the standard library is imported before a subcommand is chosen."""

import errno
import os
import sys
from collections.abc import Sequence

from cppo_lab.cli.parser import parse
from cppo_lab.errors import UserError, message
from cppo_lab.sweep.paths import share_with_group

EXTRAS = {  # of pyproject.toml, by the packages that they bring
    "train": ("torch", "numpy", "submitit"),
    "report": ("pandas", "matplotlib", "jinja2", "scipy"),
    "search": ("optuna",),
    "data": ("pyarrow", "huggingface_hub", "math_verify"),
    "verl": ("verl", "ray", "tensordict", "transformers", "transfer_queue"),
}


REMEDIES = {
    errno.EISDIR: "move the folder away that stands where a file should be",
    errno.ENOTDIR: "move the file away that stands where a folder should be",
    errno.EEXIST: "move it away",
    errno.ELOOP: "remove the link that leads to itself",
    errno.ENAMETOOLONG: "take a shorter name",
    errno.EACCES: "have its rights changed, or work in another folder",
    errno.EROFS: "work in a folder that can be written",
    errno.ENOSPC: "make room on the disk; the same command then goes on",
    errno.EDQUOT: "make room in your quota; the same command then goes on",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 not everything is, 2 bad input, 130 interrupted,
    141 the reader of its output has gone."""
    options = parse(arguments)
    try:
        share_with_group()
        code: int = options.command(options)
    except UserError as error:
        return _refused(str(error))
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
        return _refused(_of_the_system(error))
    except KeyboardInterrupt:
        print("cppo: interrupted; the same command continues with what is left", file=sys.stderr)
        return 130
    return code


def _of_the_system(error: OSError) -> str:
    """What the system refused, and what can be done about it."""
    if error.filename is None:
        return str(error)
    remedy = REMEDIES.get(error.errno or 0, "see what is there, or work in another folder")
    return f"{error.filename}: {error.strerror}: {remedy}"


def _refused(text: str) -> int:
    """Say on one line what is wrong; names in it may be anybody's, and addresses may have passwords."""
    from cppo_lab.redaction import redacted

    print(f"cppo: error: {redacted(message(text))}", file=sys.stderr)
    return 2


def _missing_package(name: str) -> str:
    needed = next((extra for extra, names in EXTRAS.items() if name.split(".")[0] in names), "all")
    return f"package {name!r} is not installed: pip install 'cppo-lab[{needed}]'"
