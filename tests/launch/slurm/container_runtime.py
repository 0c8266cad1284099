"""Stands in for pyxis and Apptainer, of which neither can be installed here: by their documents, and their sources.

A program of its own, with nothing but the standard library and root: `container_runtime.py srun|apptainer|enter ...`.
An image is a JSON file with `binds` (what of the machine it is made of), `hidden` (programs that it lacks) and `env`.
What is not mounted is not there: processes get a file system of their own.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

ASKED = "asked.jsonl"  # beside the stand-ins: one line per container
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
HELP = """      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container
"""
PYXIS = ("image", "mounts", "workdir", "env")
FLAGS = ("--no-container-mount-home", "--no-container-remap-root", "--container-writable")


def fail(text: str) -> NoReturn:
    """As srun and apptainer end for what they do not take."""
    print(f"error: {text}", file=sys.stderr)
    sys.exit(1)


def note(place: Path, **what: object) -> None:
    """One line, whole, whoever else writes."""
    with (place / ASKED).open("a") as file:
        file.write(json.dumps(what) + "\n")


def srun(place: Path, arguments: list[str]) -> NoReturn:
    """srun with pyxis: takes the container's options, and has the real one start the rest within the container."""
    path = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if Path(one) != place)
    real = shutil.which("srun", path=path)
    assert real is not None
    if "--help" in arguments:
        print(subprocess.run([real, "--help"], capture_output=True, text=True).stdout + HELP)
        sys.exit(0)
    options: list[str] = []
    given: dict[str, Any] = {"flags": []}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, _, value = word.removeprefix("--container-").partition("=")
        if word in FLAGS:
            given["flags"].append(word)
        elif not word.startswith("--container-"):
            options += [word, rest.pop(0)] if word == "--output" else [word]
        elif name not in PYXIS or not value or name in given:
            fail(f"pyxis: {word}: argument required, specified multiple times, or unknown")
        else:
            given[name] = value
    if "image" not in given:
        os.execv(real, [real, *arguments])
    note(place, runtime="pyxis", **given)
    inside = [sys.executable, __file__, "enter", str(place), json.dumps(given)]
    os.execv(real, [real, *options, *inside, *rest])


def enter(place: Path, given: dict[str, Any], command: list[str]) -> NoReturn:
    """The task itself, as pyxis lets slurmstepd start it: no process is between the two."""
    image = json.loads(Path(given["image"]).read_text())
    binds = []
    for entry in given.get("mounts", "").split(","):
        source, target, *flags = entry.split(":")
        if not Path(source).exists():
            fail(f"pyxis: --container-mounts: source path does not exist: {source}")
        binds.append((source, target, flags == ["ro"]))
    environment = dict(os.environ)
    kept = [name for name in given.get("env", "").split(",") if os.environ.get(name)]
    for name in ("LANG", "LANGUAGE", "LC_ALL"):
        environment.pop(name, None)
    environment |= {name: value for name, value in image["env"].items() if name not in kept}
    change_root(place, image, binds, given["workdir"])
    os.execvpe(command[0], command, environment)


def apptainer(place: Path, arguments: list[str]) -> NoReturn:
    """`apptainer exec`: stays beside the container, and hands on each signal that it hears."""
    if arguments.pop(0) != "exec":
        fail("unknown command")
    given: dict[str, Any] = {"flags": [], "bind": []}
    while arguments[0].startswith("-"):
        word = arguments.pop(0)
        if word == "--nv":
            given["flags"].append(word)
        elif word == "--bind":
            given["bind"].append(arguments.pop(0))
        elif word == "--pwd":
            given["pwd"] = arguments.pop(0)
        else:
            fail(f"unknown flag: {word}")
    image = json.loads(Path(arguments.pop(0)).read_text())
    note(place, runtime="apptainer", **given)
    binds = []
    for entry in given["bind"]:
        source, target, *options = entry.split(":")
        if not Path(source).exists():
            fail(f"mount source {source} doesn't exist")
        binds.append((source, target, options == ["ro"]))
    environment = image["env"] | {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("APPTAINER_", "APPTAINERENV_")) and name not in ("PATH", "LD_LIBRARY_PATH")
    }
    for name, value in os.environ.items():
        if name.startswith("APPTAINERENV_"):
            environment[name.removeprefix("APPTAINERENV_")] = value
    handed_on = {signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP, signal.SIGCONT}
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
        change_root(place, image, binds, given["pwd"])
        os.execvpe(arguments[0], arguments, environment)
    for number in handed_on:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)


def change_root(place: Path, image: dict[str, Any], binds: list[tuple[str, str, bool]], workdir: str) -> None:
    """Show this process nothing but the image and what is bound into it."""
    root = place / "root"
    root.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        fail(f"unshare: {os.strerror(ctypes.get_errno())}")

    def mount(source: str, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
        words = [word.encode() if word is not None else None for word in (source, str(target), kind)]
        if libc.mount(*words, flags, data.encode() if data else None):
            fail(f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")

    def bind(source: str, target: str, read_only: bool = False) -> None:
        at = root / target.lstrip("/")
        if Path(source).is_dir():
            at.mkdir(parents=True, exist_ok=True)
        else:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.touch()
        mount(source, at, None, MS_BIND | MS_REC)
        if read_only:
            mount(source, at, None, MS_BIND | MS_REMOUNT | MS_RDONLY)

    mount("none", Path("/"), None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", 0)
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    (root / "tmp").mkdir(mode=0o1777)
    for source, target in image["binds"].items():
        bind(source, target)
    for name in image["hidden"]:
        mount("/dev/null", root / name.lstrip("/"), None, MS_BIND)
    for source, target, read_only in binds:
        bind(source, target, read_only)
    os.chroot(root)
    os.chdir(workdir)


if __name__ == "__main__":
    kind, place, *rest = sys.argv[1:]
    if kind == "srun":
        srun(Path(place), rest)
    elif kind == "apptainer":
        apptainer(Path(place), rest)
    else:
        enter(Path(place), json.loads(rest[0]), rest[1:])
