"""What tests need of the machine, and what happens where it is not there."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from dev import lock_gpu
from dev.servers import postgres
from dev.slurm import starting

CHROMIUM = Path("/usr/bin/chromium")
VLLM_PYTHON = Path(f"{sys.prefix}-vllm", "bin", "python")  # of an environment over this one
LATEX_PACKAGE = "texlive-latex-recommended"
INDEX_SECONDS = 60


class Requirement(NamedTuple):
    """Something outside Python: `absent` says why it can't be had on this machine, or nothing if it can."""

    name: str
    variable: str  # set where it has to be there
    absent: Callable[[], str]
    of_ci: bool = True  # whether CI has it; else only `variable` makes its absence a failure

    def demand(self) -> None:
        """Go on if it is there; see `lack`."""
        if reason := self.absent():
            self.lack(reason)

    def lack(self, reason: str) -> NoReturn:
        """Skip the test since it is not there, or fail it where CI or `variable` says that it has to be."""
        for name in ("CI", self.variable) if self.of_ci else (self.variable,):
            if os.environ.get(name, "") not in ("", "0", "false"):
                pytest.fail(f"{name} is set, so {self.name} has to be there, but: {reason}")
        pytest.skip(f"{self.name}: {reason}")


def _no_slurm() -> str:
    if os.getuid() != 0:
        return "needs root"
    missing = starting.missing()
    return f"not installed: {', '.join(missing)} (python3 -m dev.slurm install)" if missing else ""


def _no_browser() -> str:
    if not CHROMIUM.is_file():
        return f"{CHROMIUM} is not there (apt-get install chromium)"
    missing = [name for name in ("playwright", "flask") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)} (pip install playwright -e '.[ui]')" if missing else ""


def _no_postgres() -> str:
    if missing := postgres.missing():
        return f"not installed: {', '.join(missing)} (python3 -m dev.servers install)"
    there = importlib.util.find_spec("psycopg2")
    return "" if there else "not installed: psycopg2 (pip install psycopg2-binary)"


def _no_latex() -> str:
    if shutil.which("pdflatex") is None:
        return f"no pdflatex (apt-get install {LATEX_PACKAGE})"
    for style in ("booktabs.sty", "colortbl.sty"):
        if not subprocess.run(["kpsewhich", style], stdout=subprocess.PIPE, check=False).stdout:
            return f"LaTeX lacks {style} (apt-get install {LATEX_PACKAGE})"
    return ""


def _no_vllm() -> str:
    return "" if VLLM_PYTHON.exists() else f"{VLLM_PYTHON} is not there (make vllm-cpu)"


def _no_index() -> str:
    """Asks as `make lock-gpu` does, for one package alone: an index must also say when a file came to it."""
    options = "--no-config --no-cache --no-deps --system-certs --quiet --no-python-downloads"
    until = lock_gpu.until(lock_gpu.FSDP.read_text())
    command = f"uv pip compile {options} --exclude-newer {until} -".split()
    try:
        done = subprocess.run(
            command, input="einops\n", capture_output=True, text=True, timeout=INDEX_SECONDS
        )
    except FileNotFoundError:
        return "not installed: uv (pip install uv)"
    except subprocess.TimeoutExpired:
        return f"no answer within {INDEX_SECONDS} s"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return f"uv: {lines[-1] if lines else done.returncode}" if done.returncode else ""


def _no_triton() -> str:
    there = importlib.util.find_spec("triton") is not None
    return "" if there else "not installed (pip install -c constraints-cpu.txt triton; Linux alone has it)"


SLURM = Requirement("Slurm", "CPPO_REQUIRE_SLURM", _no_slurm)
BROWSER = Requirement("a browser", "CPPO_REQUIRE_BROWSER", _no_browser)
POSTGRES = Requirement("PostgreSQL", "CPPO_REQUIRE_POSTGRES", _no_postgres)
LATEX = Requirement("LaTeX", "CPPO_REQUIRE_LATEX", _no_latex)
VLLM = Requirement("a vLLM for CPUs", "CPPO_REQUIRE_VLLM", _no_vllm)
TRITON = Requirement("Triton", "CPPO_REQUIRE_TRITON", _no_triton)
INDEX = Requirement("the package index", "CPPO_REQUIRE_INDEX", _no_index, of_ci=False)
