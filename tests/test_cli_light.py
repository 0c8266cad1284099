"""Commands that only read start without the libraries that train and draw."""

import subprocess
import sys
from pathlib import Path

from cppo_lab.cli import main
from cppo_lab.runs.folder import write_status
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


# Runs `cppo status`, and prints the files of the project whose functions it has executed.
TRACED = """
import sys
from pathlib import Path

import cppo_lab
from cppo_lab.cli import main

project, files = str(Path(cppo_lab.__file__).parent), set()

def note(frame, event, argument):
    if event == "call" and not frame.f_code.co_name.startswith("<"):
        files.add(frame.f_code.co_filename)

sys.setprofile(note)
main(["status"])
sys.setprofile(None)
print(*(name for name in files if name.startswith(project)))
"""


def test_status_executes_few_files(workspace: Path) -> None:
    """It builds the parser of no other command, and knows Slurm only where jobs were submitted to it."""
    folder = workspace / "runs" / ("a" * 12)
    folder.mkdir(parents=True)
    write_status(folder, {"status": "done", "rule": "cppo", "model": "m"})
    done = subprocess.run(
        [sys.executable, "-c", TRACED], cwd=workspace, capture_output=True, text=True, check=True
    )
    assert "1 run: 1 done" in done.stdout
    files = done.stdout.splitlines()[-1].split()
    assert len(files) <= 15, files
    assert not any("slurm" in name or "training" in name for name in files)
