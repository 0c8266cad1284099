"""Checks whether another version of verl still has what the verl core uses: `make verl-newest`.

`python -m dev.verl_newest [SOURCE]` installs SOURCE (anything that pip takes, such as
git+https://github.com/volcengine/verl or a folder; default: the index's newest, pre-releases included) into a separate
folder, without its dependencies, and compares. New dependencies of that version may be missing here and are reported.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dev.errors import DevError, run

CHECK = """
from importlib.metadata import version
import verl
from cppo_lab.cores.verl.check_api import API_CONTRACT, check_api
print(f"verl {version('verl')} in {verl.__path__[0]}: {len(API_CONTRACT)} touch points")
found = check_api()
print("\\n".join(found) if found else "none is missing or has changed")
raise SystemExit(bool(found))
"""


def main() -> int:
    """Print what that version lacks or has changed; the exit status is 1 if there is anything.

    Raises:
        DevError: pip cannot install it.
    """
    [source] = sys.argv[1:] or ["verl"]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--pre", "--target", folder]
        if subprocess.run([sys.executable, "-m", "pip", "install", *options, source], check=False).returncode:
            raise DevError(f"pip could not install {source}: see above")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, str(Path(__file__).parents[1])])}
        command = [sys.executable, "-W", "ignore", "-c", CHECK]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    run("dev.verl_newest", main, status=2)
