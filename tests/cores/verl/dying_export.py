"""Exports that are killed before each of their operations on files in turn: for `test_export_synthetic`.

Run as `python -m tests.cores.verl.dying_export RUNS RUN_ID OUT`: exports once, so that all libraries are loaded, to a
folder that is removed; then for each number from 1 on a process is forked that
exports and dies by SIGKILL before that operation, until one has survived. Prints a JSON line for each: the operation,
whether it was killed, what is at OUT and how many entries there are beside it.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from cppo_lab.export import export

WRITES = {"open", "os.mkdir", "os.rename", "os.chmod", "os.remove", "os.rmdir"}


def die_before(number: int, below: Path, tell: int) -> None:
    """Let this process die before its operation of that number below a folder; the name of the operation is told."""
    left = number

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in WRITES or not isinstance(arguments[0], str | os.PathLike):
            return
        if not os.fspath(arguments[0]).startswith(f"{below}/"):
            return
        if event == "open" and not int(arguments[2]) & (os.O_WRONLY | os.O_RDWR):
            return
        left -= 1
        if not left:
            os.write(tell, event.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(see)


def life(number: int, runs: Path, run_id: str, out: Path) -> dict[str, Any]:
    told, telling = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            die_before(number, out.parent, telling)
            export(runs, run_id, out, lambda _: None)
            code = 0
        finally:
            os._exit(code)
    os.close(telling)
    with os.fdopen(told) as pipe:
        operation = pipe.read()
    _, status = os.waitpid(pid, 0)
    return {
        "operation": operation,
        "killed": os.WIFSIGNALED(status),
        "code": None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
        "out": sorted(path.name for path in out.iterdir()) if out.exists() else None,
        "beside": len(list(out.parent.iterdir())) - out.exists(),
    }


if __name__ == "__main__":
    place = Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as elsewhere:
        export(Path(sys.argv[1]), sys.argv[2], Path(elsewhere, "model"), lambda _: None)
    for count in range(1, 200):
        found = life(count, Path(sys.argv[1]), sys.argv[2], place)
        print(json.dumps(found), flush=True)
        if not found["killed"]:
            break
