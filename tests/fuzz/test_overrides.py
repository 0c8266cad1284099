"""Overrides of any text are a configuration or one line."""

from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.compose.through_hydra import listed, parsed
from cppo_lab.sweep.declare import load_sweep
from cppo_lab.sweep.plan import make_plan
from tests.fuzz.mangling import fuzz, refused

KEYS = st.sampled_from(
    [
        *(
            "seed",
            "rule",
            "rule.delta",
            "rule.name",
            "model",
            "core",
            "training.t_stop",
            "tracking.uri",
            "variant",
        ),
        *(
            "launcher",
            "launcher.workers",
            "resources.partition",
            "resources.hours",
            "paths.runs",
            "data",
            "divergence",
        ),
        *(
            "hydra.run.dir",
            "hydra",
            "defaults",
            "",
            "model.architecture",
            "no.such.key",
            "rule@x",
            "/rule",
            "a.b.",
        ),
    ]
)
VALUES = st.sampled_from(
    [
        *(
            "",
            "0",
            "-1",
            "1e400",
            "nan",
            "9" * 400,
            "9" * 5000,
            "true",
            "null",
            "cppo",
            "'",
            '"',
            "a b",
            "$(id)",
            "`id`",
        ),
        *("${seed}", "${oc.env:HOME}", "${oc.decode:1}", "${x", "???", "[1,2]", "{a:1}", "1,2", "range(0,3)"),
        *(
            "choice(1,2)",
            "range(0,1e9)",
            "range(0,1,0)",
            "glob(*)",
            "int(x)",
            "str(1)",
            "../../x",
            "\0",
            "\ud800",
        ),
        *(
            "sort(1,2)",
            "interval(0,1)",
            "a\nb",
            "é",
            "(" * 300,
            "[" * 300,
            "\\",
            "cppo,dppo",
            "#",
            "%",
            "mini",
            "verl",
        ),
    ]
) | st.text(max_size=8)
OVERRIDES = st.lists(
    st.tuples(
        st.sampled_from(["", "", "", "+", "++", "~", "+~"]),
        KEYS,
        st.sampled_from(["=", "=", "=", "", "==", ":"]),
        VALUES,
    ).map("".join)
    | st.text(max_size=12),
    min_size=1,
    max_size=3,
)


@fuzz(150)
@given(overrides=OVERRIDES)
@example(overrides=["+a=" + "9" * 5000])
@example(overrides=["+rule=[1,2]"])
def test_compose(overrides: list[str]) -> None:
    refused(lambda: compose(overrides))


@fuzz(150)
@given(text=OVERRIDES)
@example(text=["seed=" + "9" * 5000])
@example(text=["seed=" + "[" * 1500])
def test_grammar(text: list[str]) -> None:
    for one in text:
        refused(partial(parsed, one))
        refused(partial(listed, one))


@pytest.mark.parametrize("sweep", ["quickstart"])
@fuzz(40)
@given(overrides=OVERRIDES)
@example(overrides=["seed=range(0,1,0)"])
@example(overrides=["seed=sort(1,a)"])
def test_plan(sweep: str, overrides: list[str]) -> None:
    refused(lambda: make_plan(load_sweep(sweep), overrides))
