"""Texts of samples: whatever a model writes comes back, or is visibly replaced; no file is trusted."""

import gzip
import json
import random
from typing import Any

import pytest

from cppo_lab.answers import texts as files
from cppo_lab.answers.texts import LONGEST, Texts, as_text, in_order_of_draws, read, write, write_within
from tests.answers import made
from tests.conftest import user_error

HOSTILE = {
    "html": "</script><b onclick='x'>&amp;",
    "bidirectional controls": "abc \u202e dcba \u2066\u2069",
    "line ends": "one\ntwo\r\nthree\u2028four\u2029five\x85six\x0bseven",
    "zeros and escapes": "\x00\x1b[31m\x7f\ufeff",
    "beyond the first plane": "\U0001f600 \U0010ffff",
    "a long line": "x" * LONGEST,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_text_comes_back_as_it_was(text: str) -> None:
    fields = dict.fromkeys(("prompt", "response", "answer"), as_text(text))
    texts = Texts(10, (made.sample(**fields, problem=text[:99]),), 3)
    assert read(write(texts), "the file") == texts and write(texts) == write(texts)


@pytest.mark.parametrize(
    "given, text",
    [
        (b"caf\xe9 \xff", "caf\ufffd \ufffd"),
        ("a\ud800b\udc00", "a\ufffdb\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),  # two halves that belong together
        (
            "a" * LONGEST + "b" * LONGEST,
            f"{'a' * (LONGEST // 2)}\n[{LONGEST} characters are left out here]\n{'b' * (LONGEST // 2)}",
        ),
    ],
    ids=["bytes", "halves", "a pair", "long"],
)
def test_what_is_no_text_is_replaced_visibly(given: str | bytes, text: str) -> None:
    assert as_text(given) == text


def test_a_bounded_file_has_the_first_samples_and_says_how_many_are_left_out() -> None:
    generator = random.Random(0)
    samples = tuple(made.sample(draw=draw, response=generator.randbytes(2000).hex()) for draw in range(20))
    for most in (0, 1000, 5000, 20_000, 10**6):
        data = write_within(Texts(10, samples, 2), most)
        found = read(data, "the file")
        count = len(found.samples)
        assert len(data) <= most or not count
        assert found.samples == samples[:count] and found.left_out == 22 - count
    assert count == 20


def test_each_problems_first_answer_comes_first_and_the_training_groups_next() -> None:
    given = [made.sample(problem=problem, draw=draw) for problem in "ab" for draw in range(3)]
    given += [made.sample(kind="training", problem="t", draw=draw, group=0) for draw in range(2)]
    found = [f"{sample.problem}{sample.draw}" for sample in in_order_of_draws(given)]
    assert " ".join(found) == "a0 b0 t0 t1 a1 b1 a2 b2"


@pytest.mark.parametrize(
    "key, value, why",
    [
        ("step", 11, "a sample is of another step than its file"),
        ("kind", "test", "kind='test': "),
        ("draw", -1, "draw=-1: "),
        ("draw", True, "draw=True: "),
        ("length", 2**70, "length=1180591620717411303424: "),
        ("right", 1, "right=1: "),
        ("prompt", None, "prompt=None: "),
        ("reward", float("nan"), "reward=nan: "),
        ("reward", 10**400, "reward=10"),
        ("more", 1, "more=1: "),
    ],
)
def test_a_line_that_is_no_sample_is_refused(key: str, value: Any, why: str) -> None:
    line = json.dumps(vars(made.sample()) | {key: value})
    data = gzip.compress(f'{{"format": 1, "step": 10, "left_out": 0}}\n{line}\n'.encode())
    with user_error(rf"stranger\.gz has no texts of a run \(.*{why}.*\): delete that file"):
        read(data, "stranger.gz")


def test_no_file_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(Texts(10, (made.sample(),)))
    others = [
        b"[" * 10**6,
        b"[]",
        b"\n",
        b'{"format": 2}',
        b'{"format": 1, "step": -1, "left_out": 0}',
        b"\xff",
    ]
    for broken in (b"", b"x", data[:-1], data[:20], data + b"x", *map(gzip.compress, others)):
        with user_error("the file has no texts"):
            read(broken, "the file")
    for name, most, message in (
        ("LARGEST_UNPACKED", 100, "larger than allowed"),
        ("LARGEST", 10, "more than the 10"),
    ):
        monkeypatch.setattr(files, name, most)
        with user_error(message):
            read(data, "the file")
