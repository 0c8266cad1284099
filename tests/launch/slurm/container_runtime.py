"""Stands in for pyxis and Apptainer, of which neither can be installed here: by their documents, and their sources.

A program of its own, with nothing but the standard library and root: `container_runtime.py srun|apptainer|enter ...`.
An image is a JSON file with `binds` (what of the machine it is made of), `hidden` (programs that it lacks) and `env`.
What is not mounted is not there: processes get a file system of their own.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

ASKED = "asked"  # beside the stand-ins: one line per container
HELP = """      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container
"""
# This program in a mount namespace of its own, without a process between.
ENTER = ("unshare", "--mount", "--propagation=private", sys.executable, __file__, "enter")
PYXIS = ("image", "mounts", "workdir", "env")
FLAGS = ("--no-container-mount-home", "--no-container-remap-root", "--container-writable")


def fail(text: str) -> NoReturn:
    """As srun and apptainer end for what they do not take."""
    print(f"error: {text}", file=sys.stderr)
    sys.exit(1)


def note(place: Path, runtime: str) -> None:
    """One line, whole, whoever else writes."""
    with (place / ASKED).open("a") as file:
        file.write(f"{runtime}\n")


def srun(place: Path, arguments: list[str]) -> NoReturn:
    """srun with pyxis: takes the container's options, and has the real one start the rest within the container."""
    path = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != place)
    real = shutil.which("srun", path=path)
    assert real is not None
    if "--help" in arguments:
        print(subprocess.run([real, "--help"], capture_output=True, text=True).stdout + HELP)
        sys.exit(0)
    options: list[str] = []
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, _, value = word.removeprefix("--container-").partition("=")
        if word in FLAGS:
            continue
        if not word.startswith("--container-"):
            options += [word, rest.pop(0)] if word == "--output" else [word]
        elif name not in PYXIS or not value or name in given:
            fail(f"pyxis: {word}: argument required, specified multiple times, or unknown")
        else:
            given[name] = value
    if "image" not in given:
        os.execv(real, [real, *arguments])
    note(place, "pyxis")
    inside = {**given, "mounts": given.get("mounts", "").split(","), "names": given.get("env", "").split(",")}
    os.execv(real, [real, *options, *ENTER, str(place), json.dumps(inside), *rest])


def apptainer(place: Path, arguments: list[str]) -> NoReturn:
    """`apptainer exec`: stays beside the container, and hands on each signal that it hears."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("verb", choices=["exec"])
    parser.add_argument("--nv", action="store_true")
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--pwd")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    note(place, "apptainer")
    inside = json.dumps({"image": given.image, "mounts": given.bind, "workdir": given.pwd})
    handed_on = {signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP, signal.SIGCONT}
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
        os.execvp(ENTER[0], [*ENTER, str(place), inside, *given.command])
    for number in handed_on:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)


def environment_in(image: dict[str, Any], names: list[str] | None) -> dict[str, str]:
    """pyxis prefers what the image has, but for `names`; Apptainer (None) what comes from outside."""
    outside = dict(os.environ)
    if names is not None:
        preferred = [name for name in names if outside.get(name)]
        for name in ("LANG", "LANGUAGE", "LC_ALL"):
            outside.pop(name, None)
        return outside | {name: value for name, value in image["env"].items() if name not in preferred}
    own = ("APPTAINER_", "APPTAINERENV_")
    passed = {name: value for name, value in outside.items() if not name.startswith(own)}
    for name in ("PATH", "LD_LIBRARY_PATH"):
        passed.pop(name, None)
    asked = {name.removeprefix(own[1]): value for name, value in outside.items() if name.startswith(own[1])}
    environment: dict[str, str] = image["env"] | passed | asked
    return environment


def mount(*words: object) -> None:
    """As mount(8) does, or end as a container that cannot start."""
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        fail(done.stderr)


def enter(place: Path, given: dict[str, Any], command: list[str]) -> NoReturn:
    """The task itself, which sees nothing but the image and what is mounted into it."""
    image = json.loads(Path(given["image"]).read_text())
    root = place / "root"
    root.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "none", root)
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    (root / "tmp").mkdir(mode=0o1777)
    binds = [[source, target] for source, target in image["binds"].items()]
    binds += [["/dev/null", name] for name in image["hidden"]]
    for source, target, *flags in binds + [entry.split(":") for entry in given["mounts"]]:
        at = root / target.lstrip("/")
        if Path(source).is_dir():
            at.mkdir(parents=True, exist_ok=True)
        elif not at.exists():
            at.parent.mkdir(parents=True, exist_ok=True)
            at.touch()
        mount("--rbind", source, at)
        if flags == ["ro"]:
            mount("-o", "remount,bind,ro", at)
    environment = environment_in(image, given.get("names"))
    os.chroot(root)
    os.chdir(given["workdir"])
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    kind, place, *rest = sys.argv[1:]
    if kind == "enter":
        enter(Path(place), json.loads(rest[0]), rest[1:])
    {"srun": srun, "apptainer": apptainer}[kind](Path(place), rest)
