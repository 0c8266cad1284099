"""A sweep file of any content is a plan or one line that names it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from cppo_lab.sweep.file import load_sweep, shipped_sweeps
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.source import SHIPPED
from tests.fuzz.mangling import altered, damaged, fuzz, refused

TEXTS = [(SHIPPED / f"{name}.yaml").read_bytes() for name in shipped_sweeps()]
SWEEP = """title: t
question: q?
feeds: [Table 1]
models: {mini: [mini_base], verl: [tiny_qwen3]}
variants: {cppo: {rule: cppo}, own: {rule: dppo, rule.delta: 0.1}}
axes: {seed: [0, 1], optim.learning_rate: [1.0e-4]}
exclude: [{variant: own, seed: 1}]
resources: [{hours: 2, cpus: 1}, {for: {variant: own}, memory_gb: 4}]
"""
SMALL = yaml.safe_load(SWEEP)
STUDY = {"title": "t", "question": "q?", "sweeps": ["quickstart", "./small.yaml"], "axes": {"seed": [3]}}
SEARCH: dict[str, Any] = yaml.safe_load((SHIPPED / "tune_cppo.yaml").read_text())


@pytest.fixture(scope="module")
def file(shared_path: Path) -> Path:
    (shared_path / "small.yaml").write_text(SWEEP)
    return shared_path / "mine.yaml"


def load(path: Path) -> None:
    assert load_sweep(str(path)).source == str(path)


@fuzz(100)
@given(text=damaged(*TEXTS))
@example(text=b"a: " + b"[" * 500)
@example(text=b"a: &a [*a]")
@example(text=b"title: !!python/object/apply:os.system [id]")
@example(text=b"? [a, b]\n: c")
@example(text=b"title: 0x_\n")
@example(text=b"title: 2001-99-99\n")
def test_bytes(file: Path, text: bytes) -> None:
    file.write_bytes(text)
    refused(lambda: load(file), file.name)


@fuzz(120)
@given(values=altered(STUDY) | altered(SEARCH))
def test_structure(file: Path, values: Any) -> None:
    file.write_text(yaml.dump(values))
    refused(lambda: load(file), file.name)


@fuzz(50)
@given(values=altered(SMALL) | altered(STUDY))
@example(values={**SMALL, "axes": {"\r": [None]}})
@example(values={**SMALL, "axes": {"\x1b[2J": None}})
def test_plan(file: Path, values: Any) -> None:
    file.write_text(yaml.dump(values))

    def plan() -> None:
        made = make_plan(load_sweep(str(file)), ["core=mini"])
        assert made.runs
        assert len({run.run_id for run in made.runs}) == len(made.runs)

    refused(plan)


@fuzz(20)
@given(
    name=st.text(max_size=20)
    | st.sampled_from(["x" * 300 + ".yaml", "\0.yaml", "a/\ud800", "/", ".yaml", "//.yaml"])
)
def test_names(name: str) -> None:
    refused(lambda: load_sweep(name))
