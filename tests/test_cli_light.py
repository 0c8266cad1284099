"""Commands that only read start without the libraries that train and draw."""

import subprocess
import sys
from pathlib import Path

from cppo_lab.cli import main
from tests.conftest import TINY

# Runs `cppo` where libraries that take long to import, or that a minimal installation lacks, are not there.
HEAVY = ("mlflow", "sqlalchemy", "torch", "submitit", "numpy", "pandas", "scipy", "matplotlib", "optuna")
WITHOUT = f"""
import sys

sys.modules.update(dict.fromkeys({HEAVY}))  # an import of one of them is a ModuleNotFoundError
from cppo_lab.cli import main

sys.exit(main(sys.argv[1:]))
"""


def test_commands_that_only_read_import_no_heavy_library(workspace: Path) -> None:
    assert main(["launch", "quickstart", *TINY, "seed=0", "launcher=inline"]) == 0
    ids = sorted(path.parent.name for path in (workspace / "runs").glob("*/config.json"))
    for words, code in (
        (["plan", "quickstart", *TINY], 0),
        (["show", ids[0]], 0),
        (["show", "quickstart", *TINY], 0),
        (["diff", ids[0], ids[1]], 0),
        (["status"], 0),
        (["status", "quickstart", *TINY], 0),
        (["logs", ids[0]], 0),
        (["compare", "no_report", "no_report"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, *words],
            cwd=workspace,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (words, done.stderr)
        assert "is not installed" not in done.stderr, words
        if words[0] == "plan":
            assert done.stdout.count(" done") >= 3
