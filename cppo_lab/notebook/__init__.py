"""Results as tidy pandas frames: `cppo_lab.load`. Reads a tracking store, or the paper's curves; writes nothing."""

from cppo_lab.errors import UserError

try:
    from cppo_lab.notebook.loading import load
    from cppo_lab.notebook.results import Results
except ModuleNotFoundError as error:
    if error.name != "pandas":
        raise
    raise UserError("package 'pandas' is not installed: pip install 'cppo-lab[notebook]'") from None

__all__ = ["Results", "load"]
