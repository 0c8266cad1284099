"""The table of bounds, `python -m cppo_lab.maths.bounds`."""

import re

import pytest

from cppo_lab.maths.bounds import bound_rows, main
from tests.conftest import python

PAPER = {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "horizon": 8192, "xi": 1.0}


def test_bounds_of_the_paper_setting(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--delta .15 --delta-b .02 --w-min .8 --horizon 8192"
    assert main(arguments.split()) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert {
        "DPPO 3.0195e+06 1",
        "CPPO, uniform weights 4.026e+05 0.1333 yes delta_b < 0.15",
        "CPPO, position weights 5.0326e+05 0.1667 yes delta_b < 0.12",
    } <= {*lines}
    assert main([]) == 0
    assert capsys.readouterr().out == text  # the defaults are the paper's


@pytest.mark.parametrize("change", [{}, {"horizon": 4}, {"delta": 0.3, "w_min": 0.5}, {"xi": 0.5}])
def test_the_limit_of_delta_b_is_where_the_bounds_meet(change: dict) -> None:
    setting = {**PAPER, **change}
    for position, row in enumerate(bound_rows(**setting)):
        if row.limit is not None and row.limit > 0:
            rows = bound_rows(**{**setting, "delta_b": row.limit})
            assert rows[position].constant == pytest.approx(rows[0].constant, rel=1e-12)
            below, above = (
                bound_rows(**{**setting, "delta_b": factor * row.limit})[position] for factor in (0.99, 1.01)
            )
            assert below.ratio < 1 < above.ratio


def test_bounds_says_when_it_is_not_tighter(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    assert re.findall(r"(yes|no) +delta_b <", said("--delta-b", "0.13")) == ["yes", "no", "yes", "no", "no"]
    assert "never, for any delta_b" in said("--horizon", "2")
    assert "every constant is 0" in said("--horizon", "1")


TV = "must lie in (0, 1]: a total variation never exceeds 1"
HORIZON = "must be an integer in 1..1000000000: pass the response length in tokens"
NUMBER = "is not a number: pass one such as"


@pytest.mark.parametrize(
    "option, value, says",
    [
        ("--delta", "x", f"delta='x' {NUMBER} --delta 0.5"),
        ("--delta", "-1", f"delta=-1.0 {TV}"),
        ("--delta", "nan", f"delta=nan {TV}"),
        ("--w-min", "1.1", "w_min=1.1 must lie in (0, 1]: w_min=1 means no position weights"),
        ("--horizon", "1.5", f"horizon=1.5 {HORIZON}"),
        ("--horizon", "9" * 5000, f"horizon=inf {HORIZON}"),
        ("--horizon", "many", f"horizon='many' {NUMBER} --horizon 8192"),
        ("--xi", "0", "xi=0.0 must lie in (0, inf): pass a finite number above 0"),
    ],
)
def test_a_value_out_of_range_is_one_line(
    option: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, value])
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err) == (2, "", f"cppo: error: {says}\n")


def test_each_module_is_a_program() -> None:
    """The bounds need no heavy library."""
    script = (
        "import runpy, sys\nsys.argv[1:] = ['--horizon', '1']\n"
        "try: runpy.run_module('cppo_lab.maths.bounds', run_name='__main__')\n"
        "finally: print(sorted({'torch', 'numpy', 'mlflow', 'hydra', 'pydantic'} & set(sys.modules)))"
    )
    last = ["One token: J(pi) - J(mu) = L' exactly, every constant is 0.", "[]"]
    assert python("-c", script).stdout.splitlines()[-2:] == last
    assert python("-m", "cppo_lab.testing.vectors", "gone.npz", check=False).returncode == 2
