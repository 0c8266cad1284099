"""The paper's curves as they would be after a bad merge, a bad disk or a bad hand."""

import re
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


# The last field of the first row.
FIRST_VALUE = re.compile(rb"(\A.*\n.*,).*")
# The file, what has become of it, and what is said.
DAMAGED: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("table_full.csv", lambda data: data.replace(b"t_stop", b"stop", 1), "KeyError: 't_stop'"),
    ("table_full.csv", lambda data: b"\xff" + data[1:], "UnicodeDecodeError: "),
    ("table_full.csv", lambda data: data + b'"' + b"x" * 200_000, ""),  # a quote that never ends
    (
        "validation_curves.csv",
        lambda data: FIRST_VALUE.sub(rb"\1abc", data),
        "ValueError: could not convert",
    ),
    (
        "validation_curves.csv",
        lambda data: FIRST_VALUE.sub(rb"\1nan", data),
        "ValueError: nan is not a score",
    ),
    ("validation_curves.csv", lambda data: b"", "IndexError: "),
    ("validation_curves.csv", lambda data: data.rpartition(b",")[0], "TypeError: "),
    ("training_diagnostics.csv.gz", lambda data: data[: len(data) // 2], "EOFError: "),
    ("training_diagnostics.csv.gz", lambda data: b"x" + data, "BadGzipFile: "),
    ("training_diagnostics.csv.gz", lambda data: data[:200] + bytes(50) + data[250:], "error: "),
    ("ablation_curves.csv", lambda data: data.replace(b"Qwen", b"Quen", 1), "ValueError: model 'Quen"),
]
CASES = [
    Case(
        "reference import",
        f"the paper's curves in reports/paper/{name} are damaged ({said}…): {REMEDY}",
        make=_with(name, change),
    )
    for name, change, said in DAMAGED
]
