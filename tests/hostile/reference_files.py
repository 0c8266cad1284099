"""The paper's curves as they would be after a bad merge, a bad disk or a bad hand."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import cppo_lab
from tests.hostile.case import Case

SHIPPED = cppo_lab.PARTS_FOLDER / "reports" / "paper"
PLACE = "shipped"  # stands for the package's folder in these tests
REMEDY = "install the package again"


def _with(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        shutil.copytree(SHIPPED, folder / PLACE / "paper")
        path = folder / PLACE / "paper" / name
        path.write_bytes(change(path.read_bytes()))

    return make


def _case(name: str, change: Callable[[bytes], bytes], said: str) -> Case:
    says = f"the paper's curves in reports/paper/{name} are damaged ({said}…): {REMEDY}"
    return Case("reference import", says, make=_with(name, change))


def _first_value(by: bytes) -> Callable[[bytes], bytes]:
    """Puts something in place of the last field of the first row."""

    def change(data: bytes) -> bytes:
        head, row, *rest = data.splitlines()
        return b"\n".join([head, row[: row.rindex(b",") + 1] + by, *rest])

    return change


def _packed(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: gzip.compress(change(gzip.decompress(data)))


CASES = [
    _case("table_full.csv", lambda data: data.replace(b"t_stop", b"stop", 1), "KeyError: 't_stop'"),
    _case("table_full.csv", lambda data: data.replace(b"method", b"rule", 1), "KeyError: 'method'"),
    _case("table_full.csv", lambda data: b"\xff" + data[1:], "UnicodeDecodeError: "),
    _case(
        "validation_curves.csv", _first_value(b"abc"), "ValueError: could not convert string to float: 'abc'"
    ),
    _case("validation_curves.csv", _first_value(b"nan"), "ValueError: nan is not a score"),
    _case("validation_curves.csv", _first_value(b"1e400"), "ValueError: 1e400 is not a score"),
    _case("validation_curves.csv", _first_value(b""), "ValueError: could not convert string to float: ''"),
    _case("validation_curves.csv", lambda data: b"", "IndexError: "),
    _case("training_diagnostics.csv.gz", lambda data: data[: len(data) // 2], "EOFError: "),
    _case("training_diagnostics.csv.gz", lambda data: b"no archive", "BadGzipFile: "),
    _case("training_diagnostics.csv.gz", lambda data: data[:200] + bytes(50) + data[250:], "error: "),
    _case(
        "training_diagnostics.csv.gz",
        _packed(lambda data: data.replace(b"reward", b"gain", 1)),
        "KeyError: 'gain'",
    ),
    _case("warmup_diagnostics.csv", _first_value(b"-inf"), "ValueError: -inf is not a score"),
    _case("ablation_curves.csv", lambda data: data.replace(b"variant", b"name", 1), "KeyError: 'variant'"),
    _case(
        "ablation_curves.csv",
        lambda data: data.replace(b"Qwen", b"Quen", 1),
        "ValueError: model 'Quen",
    ),
    _case("ablation_curves.csv", _first_value(b"0.1\x00"), ""),
]
