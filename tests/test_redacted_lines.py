"""What is printed in pieces is masked as the whole is."""

import io
import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.files import RedactedLines, mask_output, masked_errors, redacted

SECRET = "s3cret"
LINES = [
    f"View run at: http://admin:{SECRET}@host:5000/#/experiments/1\n",
    f"HF_TOKEN={SECRET} and more\r\n",
    "loss 0.5 \u2014 nothing to mask\n",
    f"progress\rconnect postgresql://ada:{SECRET}@db/x\r",
    "\n",
]


@given(st.lists(st.sampled_from(LINES), max_size=5), st.lists(st.integers(0, 300), max_size=8))
def test_however_it_is_cut_the_mask_is_that_of_whole_lines(lines: list[str], cuts: list[int]) -> None:
    content = "".join(lines).encode()
    ends = sorted({min(cut, len(content)) for cut in (0, *cuts)} | {len(content)})
    masked = RedactedLines()
    text = "".join(masked.add(content[a:b]) for a, b in itertools.pairwise(ends)) + masked.rest()
    assert text == redacted(content.decode())
    assert SECRET not in text


def test_a_line_without_an_end_is_bounded() -> None:
    masked = RedactedLines()
    assert sum(len(masked.add("x" * 1000)) for _ in range(200)) >= 100_000


def test_what_python_prints_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    mask_output()
    mask_output()  # once is enough
    print("at", f"http://admin:{SECRET}@", end="")
    assert out.getvalue() == ""  # half of an address is not shown
    print("host", flush=True)
    print("working ...", end="", flush=True)
    print(f"password={SECRET}", file=sys.stderr)
    assert out.getvalue() == "at http://admin:***@host\nworking ..."
    assert err.getvalue() == "password=***\n"


def test_an_error_with_a_secret_is_replaced_by_one_without() -> None:
    with pytest.raises(RuntimeError) as caught, masked_errors():
        raise OSError(f"no route to http://admin:{SECRET}@host")
    assert SECRET not in str(caught.value) and caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "OSError" in str(caught.value) and "admin:***@host" in str(caught.value)
    with pytest.raises(KeyError, match="plain"), masked_errors():
        raise KeyError("plain")
