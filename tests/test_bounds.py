"""The table of bounds, `python -m cppo_lab.maths.bounds`."""

import subprocess
import sys

import pytest

from cppo_lab.maths.bounds import bound_rows, main

PAPER = {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "horizon": 8192, "xi": 1.0}


def test_bounds_of_the_paper_setting(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--delta .15 --delta-b .02 --w-min .8 --horizon 8192"
    assert main(arguments.split()) == 0
    text = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert lines["DPPO"].split()[1:] == ["3.0195e+06", "1"]
    uniform = "4.026e+05 0.1333 yes delta_b < 0.15"
    assert lines["CPPO, uniform weights"].split()[3:] == uniform.split()
    weighted = "5.0326e+05 0.1667 yes delta_b < 0.12"
    assert lines["CPPO, position weights"].split()[3:] == weighted.split()
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
    assert main(["--delta-b", "0.13"]) == 0
    out = capsys.readouterr().out
    answers = [line.split("delta_b <")[0].split()[-1] for line in out.splitlines() if "delta_b <" in line]
    assert answers == ["yes", "no", "yes", "no", "no"]
    assert main(["--horizon", "2"]) == 0
    assert "never, for any delta_b" in capsys.readouterr().out
    assert main(["--horizon", "1"]) == 0
    assert "every constant is 0" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    "words, code",
    [(["maths.bounds", "--horizon", "1"], 0), (["testing.vectors", "gone.npz"], 2)],
    ids=lambda value: str(value),
)
def test_each_module_is_a_program(words: list[str], code: int) -> None:
    """The bounds need no heavy library."""
    script = (
        "import runpy, sys\n"
        f"sys.argv[1:] = {words[1:]!r}\n"
        f"try: runpy.run_module('cppo_lab.{words[0]}', run_name='__main__')\n"
        "finally: print(sorted({'torch', 'numpy', 'mlflow', 'hydra', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code
    if words[0] == "maths.bounds":
        assert done.stdout.splitlines()[-2:] == [
            "One token: J(pi) - J(mu) = L' exactly, every constant is 0.",
            "[]",
        ]
