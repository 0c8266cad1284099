"""Small files in the layouts that are published, written without the code under test."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
SHIPPED = Path(__file__).parents[2] / "cppo_lab" / "data" / "rows"


def dapo_row(problem: str, answer: str, index: str = "0-1") -> dict[str, Any]:
    """A row as BytedTsinghua-SIA/DAPO-Math-17k has it."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": BEFORE + problem + AFTER, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def read_parquet(path: Path) -> list[dict[str, Any]]:
    return pyarrow.parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]


def shipped(name: str) -> list[dict[str, Any]]:
    """The rows of a file that the package carries."""
    return [json.loads(line) for line in (SHIPPED / f"{name}.jsonl").read_text().splitlines()]
