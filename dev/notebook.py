"""Runs the notebook in docs/ and stores the output of its cells: `python3 -m dev.notebook`; a test compares.

Only the standard library is needed, since its cells are plain Python: what a cell prints, and the value of its last
expression, as a notebook shows them.
"""

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, run in order, in the notebook format."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run("".join(cell["source"]), number, names) for number, cell in enumerate(_code(notebook), 1)]


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _run(source: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    values: list[Any] = []  # of its expressions
    code = compile(ast.Interactive(ast.parse(source).body), "a cell", "single")
    with contextlib.redirect_stdout(io.StringIO()) as printed, patch("sys.displayhook", values.append):
        exec(code, names)  # noqa: S102  a file of this tree
    shown: list[dict[str, Any]] = []
    if text := printed.getvalue():
        shown.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if values and values[-1] is not None:
        data = {"text/plain": repr(values[-1]).splitlines(keepends=True)}
        shown.append(
            {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return shown


def main() -> None:
    """Write the outputs into the notebook."""
    notebook = json.loads(NOTEBOOK.read_text())
    for number, (cell, shown) in enumerate(zip(_code(notebook), outputs(notebook), strict=True), 1):
        cell |= {"execution_count": number, "outputs": shown}
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
