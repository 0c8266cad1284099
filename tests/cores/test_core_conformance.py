"""The mini and exact cores pass the conformance tests; a core of another package goes from entry point to report."""

from pathlib import Path
from typing import ClassVar

from cppo_lab.cores.exact import EXACT
from cppo_lab.cores.mini import MINI
from tests.conftest import TINY
from tests.cores.test_core_records import SMALL, InThisProcess, cppo, package

SWEEP = """
title: Theirs
question: Does it learn?
models: {mini: [mini_small_base], acme: [mini_small_base]}
axes: {seed: [0, 1]}
variants:
  dppo: {rule: dppo}
"""


class TestMini(InThisProcess):
    """The embedded core passes its own conformance tests. Processes that are killed: `test_core_records`, and all of
    tests/launch.
    """

    core = MINI
    overrides = tuple(TINY)
    refused: ClassVar = {"rule=verl_sapo": "needs core=verl"}


class TestExact(InThisProcess):
    """The exact core, on responses of eight tokens."""

    core = EXACT
    overrides = (
        "model=exact_early", "model.stretches=4", "rollout.max_response_length=8", "batch.prompts=4",
        "batch.responses=4", "batch.minibatch_prompts=2", "validation.every=2", "training.t_stop=4",
    )  # fmt: skip
    refused: ClassVar = TestMini.refused


def test_a_core_of_another_package_from_launch_to_report(tmp_path: Path) -> None:
    theirs = package(tmp_path / "site")
    (tmp_path / "theirs.yaml").write_text(SWEEP)
    chosen = ("./theirs.yaml", "core=acme", *SMALL[1:])
    for words, path, ends, said in (
        (("launch", *chosen, "acme.noise=0.1", "launcher=inline"), theirs, 0, ""),
        (("status",), theirs, 0, "2 done"),
        (("plan", *chosen), theirs, 0, "2 runs: 2 missing"),  # acme.noise decides the numbers, and so the id
        (("report", *chosen, "acme.noise=0.1"), theirs, 0, ""),
        # Without their package no run of theirs can be planned, and what is on file is still shown.
        (("plan", *chosen), None, 2, "unknown core 'acme'"),
        (("status",), None, 0, "2 done"),
    ):
        code, out, err = cppo(tmp_path, *words, path=path)
        assert code == ends and said in (err if ends else out), out + err
