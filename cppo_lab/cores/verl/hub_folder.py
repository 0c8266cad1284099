"""Folders in Hugging Face's format: copied from folders that others can write to, and checked afterwards."""

import contextlib
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError, one_line
from cppo_lab.files import names_below, open_below

# Files that describe the model and tokenizer. No code, and nothing that a reader would unpickle.
_DESCRIBES = (".json", ".txt", ".jinja", ".model")
_MOST_BYTES = 2**28  # of such a file; a tokenizer of 250,000 tokens has 2^25
CONFIG = "config.json"


def copy_description(runs: Path, at: tuple[str, ...], target: Path) -> None:
    """Copy the configuration and tokenizer of a model from the folder at the path `at` below `runs`.

    Raises UserError if there is no configuration, or if it requires code of the model.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in names_below(runs, *at):
        if name.endswith(_DESCRIBES):
            copy_file(runs, (*at, name), target / name, most=_MOST_BYTES)
    where = runs.joinpath(*at)
    try:
        config: Any = json.loads((target / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UserError(f"{where / CONFIG} is missing or damaged, so the model is unknown")
    if config.get("auto_map"):
        raise UserError(
            f"{where / CONFIG} requires the model's own code (auto_map), which is neither run nor exported: only "
            "architectures that transformers knows can be"
        )
    # Drop the attention implementation: it depends on the machine, and its name may refer to code on the hub.
    for key in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        config.pop(key, None)
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def copy_file(
    runs: Path, at: tuple[str, ...], target: Path, most: int | None = None, link: bool = False
) -> None:
    """Copy the file at the path `at` below `runs`, of at most `most` bytes; `link`: by a hard link if possible.

    Raises UserError if it is not a plain file, or too large.
    """
    file = open_below(runs, *at)
    if file is None:
        raise UserError(f"{runs.joinpath(*at)} no longer exists: try again")
    with file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise UserError(
                f"{runs.joinpath(*at)} has more than {most} bytes: it is not what verl writes there"
            )
        if link:
            with contextlib.suppress(OSError):  # another file system, or a kernel that forbids it
                # Only with a `src_dir_fd` does Python follow the link; an absolute path ignores the folder itself.
                os.link(
                    f"/proc/self/fd/{file.fileno()}", target, src_dir_fd=file.fileno(), follow_symlinks=True
                )
                return
        with target.open("xb") as copy:
            shutil.copyfileobj(file, copy, 2**22)


def require_complete(folder: Path) -> tuple[str, int]:
    """Load the model of `folder` as users will, but without the values; returns precision and number of its weights.

    Raises UserError if weights are missing, unexpected, or of a shape that does not match the configuration.
    """
    from transformers import AutoModelForCausalLM

    with quiet(), refusing("the checkpoint does not make a model that transformers reads"):
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported with the others
            local_files_only=True,
        )
    wrong = {name: sorted(map(str, loading[name])) for name in _FAULTS if loading.get(name)}
    if wrong:
        problems = "; ".join(f"{_FAULTS[name]}: {', '.join(which[:3])}" for name, which in wrong.items())
        raise UserError(f"the checkpoint's weights are not those of its configuration: {problems}")
    return str(model.dtype).removeprefix("torch."), sum(parameter.numel() for parameter in model.parameters())


_FAULTS = {
    "missing_keys": "missing",
    "unexpected_keys": "left over",
    "mismatched_keys": "of another shape",
    "error_msgs": "not read",
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, verl's output, torch's message on meshes without processes, and transformers' progress bars."""
    from transformers.utils import logging as transformers_logging

    meshes = logging.getLogger("torch.distributed.device_mesh")
    level, bars = meshes.level, transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    meshes.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        meshes.setLevel(level)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Convert whatever libraries raise on untrusted files to a UserError with `what` and the reason.

    OSErrors are not converted, since the disk may be full.
    """
    try:
        yield
    except (UserError, ModuleNotFoundError):
        raise
    except Exception as error:  # tokenizers raises plain Exception, transformers nearly every type
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{what}: {type(error).__name__}: {one_line(str(error))}") from error
