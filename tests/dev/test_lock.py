"""The lock of the CPU environment: it agrees with the constraints, and what it says can be trusted."""

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from dev.errors import DevError
from dev.lock import (
    CONSTRAINTS,
    LINUX,
    LOCK,
    Pin,
    as_text,
    cpu_builds,
    differences,
    for_cpus,
    pins,
)
from tests.conftest import ROOT

A, B = "a" * 64, "b" * 64


def test_lock_and_constraints_agree() -> None:
    wanted, locked = (pins(path.read_text()) for path in (CONSTRAINTS, LOCK))
    assert differences(wanted, locked) == set(), "run `make lock`"
    assert len(locked) > 100
    assert as_text(locked) == LOCK.read_text()


def test_everything_that_the_project_names_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    named = {
        canonicalize_name(re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0])
        for group in groups
        for one in group
    }
    pinned = pins(CONSTRAINTS.read_text())
    of_docs = pins((ROOT / "constraints-docs.txt").read_text())
    assert not pinned.keys() & of_docs.keys()  # both are given to pip together
    # Trackio 0.43 wants pillow < 13.
    assert named - {"cppo-lab", "trackio"} <= {*pinned, *of_docs}


def test_pins_are_read() -> None:
    text = f"# made by x==1\nB_b.c==1.0 \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n\na==2.0+cpu\n"
    text += f"d==3{LINUX} \\\n    --hash=sha256:{A}\n"
    assert pins(text) == {"b-b-c": Pin("1.0", (A, B)), "a": Pin("2.0+cpu"), "d": Pin("3", (A,), LINUX)}
    assert pins(as_text(pins(text))) == pins(text)


@pytest.mark.parametrize(
    "text",
    [
        *("a>=1", "a", "a==1; python_version > '3'", "a==1 --hash=md5:00", "-e .", "a @ https://x/a.whl"),
        *(f"a==1 --hash=sha256:{A[1:]}", f"a==1 --hash=sha256:{A} --pre", "a==1\nA==2"),
    ],
)
def test_what_pins_nothing_is_refused(text: str) -> None:
    with pytest.raises(DevError):
        pins(text)


def test_differences() -> None:
    wanted = {name: Pin("2") for name in "abcd"}
    locked = {"a": Pin("2", (A,)), "b": Pin("3", (B,)), "c": Pin("2"), "e": Pin("3", (B,))}
    wrong = {("b", "2"), ("b", "3"), ("c", "2"), ("d", "2"), ("e", "3")}  # c has no hash
    assert differences(wanted, locked) == wrong


def test_cpu_builds_of_a_folder(tmp_path: Path) -> None:
    for version, content in (("2.0", b"wheel"), ("3.0", b"another version")):
        (tmp_path / f"torch-{version}+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(content)
    assert cpu_builds("2.0", str(tmp_path)) == (hashlib.sha256(b"wheel").hexdigest(),)
    with pytest.raises(DevError, match="has no torch-4"):
        cpu_builds("4.0", str(tmp_path))


@pytest.mark.parametrize(
    "name, taken, left_out",
    [
        (
            "A",
            [
                "cp311-cp311-manylinux_2_28_x86_64",
                "cp39-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64",
                "py2.py3-none-any",
                "py311-none-any",
                "cp314-cp314-macosx_14_0_arm64",
            ],
            [
                "cp314-cp314t-manylinux_2_28_x86_64",
                "cp311-cp311-win_amd64",
                "cp311-cp311-musllinux_1_2_x86_64",
                "pp310-pypy310_pp73-manylinux_2_28_x86_64",
                "cp311-cp311-manylinux_2_28_armv7l",
                "py2-none-any",
                "sdist",
            ],
        ),
        ("a", [], ["cp311-cp311-win_amd64", "sdist"]),
        ("a", ["sdist"], []),  # a source archive counts only without wheels
        (
            "torch",  # for Linux it is a CPU build
            ["cp311-cp311-manylinux_2_28_aarch64", "%2Bcpu-cp311-cp311-manylinux_2_28_x86_64"],
            ["cp311-cp311-manylinux_2_28_x86_64", "sdist"],
        ),
    ],
)
def test_files_are_those_of_cpu_machines(name: str, taken: list[str], left_out: list[str]) -> None:
    files = {
        tag: {"url": f"https://x/ab/a-1-{tag}.whl", "hashes": {"sha256": tag}} for tag in taken + left_out
    }
    package = {"name": name, "version": "1", "sdist": files.pop("sdist"), "wheels": [*files.values()]}
    of_macs = not files.keys() & set(taken) or any("-any" in tag or "macosx" in tag for tag in taken)
    expected = Pin("1", tuple(sorted(taken)), "" if of_macs else LINUX)
    assert for_cpus([package]) == {name.lower(): expected}
