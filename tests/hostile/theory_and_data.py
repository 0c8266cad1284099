"""Arguments of `cppo bounds`, `check-vectors`, `doctor` and `data`, and the files that they read."""

import io
import pickle
import zipfile

import numpy

from tests.hostile.case import Case, Content

VECTORS = "pass a vectors file, an .npz of arrays CASE/PART/NAME with a manifest"
TV = "must lie in (0, 1]: a total variation never exceeds 1"
HORIZON = "must be an integer in 1..1000000000: pass the response length in tokens"
PREPARE = "prepare the data again"
ROW = "fix or drop it"


def _bounds(option: str, value: str, says: str) -> Case:
    return Case(["bounds", option, value], says)


def _rows(content: Content, says: str) -> Case:
    return Case(["data", "prepare", "--from", "rows.jsonl"], f"rows.jsonl{says}", {"rows.jsonl": content})


def _doctor(*words: str, says: str) -> Case:
    return Case(["doctor", *words], says)


def _archive(**arrays: object) -> bytes:
    file = io.BytesIO()
    numpy.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


class _Canary:
    """What would write a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        import os

        return os.system, ("touch canary",)


def _pickled() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.npy", pickle.dumps(_Canary()))
    return file.getvalue()


BOUNDS = [
    _bounds("--delta", "x", "delta='x' is not a number: pass one such as --delta 0.5"),
    _bounds("--delta", "", "delta='' is not a number: pass one such as --delta 0.5"),
    _bounds("--delta", "1,5", "delta='1,5' is not a number: pass one such as --delta 0.5"),
    _bounds("--delta", "0x1", "delta='0x1' is not a number: pass one such as --delta 0.5"),
    _bounds("--delta", "-1", f"delta=-1.0 {TV}"),
    _bounds("--delta", "0", f"delta=0.0 {TV}"),
    _bounds("--delta", "nan", f"delta=nan {TV}"),
    _bounds("--delta", "2", f"delta=2.0 {TV}"),
    _bounds("--delta-b", "0", f"delta_b=0.0 {TV}"),
    _bounds("--delta-b", "inf", f"delta_b=inf {TV}"),
    _bounds("--w-min", "0", "w_min=0.0 must lie in (0, 1]: w_min=1 means no position weights"),
    _bounds("--w-min", "1.1", "w_min=1.1 must lie in (0, 1]: w_min=1 means no position weights"),
    _bounds("--horizon", "0", f"horizon=0 {HORIZON}"),
    _bounds("--horizon", "-5", f"horizon=-5 {HORIZON}"),
    _bounds("--horizon", "1.5", f"horizon=1.5 {HORIZON}"),
    _bounds("--horizon", "nan", f"horizon=nan {HORIZON}"),
    _bounds("--horizon", "inf", f"horizon=inf {HORIZON}"),
    _bounds("--horizon", "1e300", f"horizon=1e+300 {HORIZON}"),
    _bounds("--horizon", "9" * 5000, f"horizon=inf {HORIZON}"),
    _bounds("--horizon", "many", "horizon='many' is not a number: pass one such as --horizon 8192"),
    _bounds("--w-min", "high", "w_min='high' is not a number: pass one such as --w-min 0.5"),
    Case(["bounds", "--xi=-1"], "xi=-1.0 must lie in (0, inf): pass a finite number above 0"),
    _bounds("--xi", "0", "xi=0.0 must lie in (0, inf): pass a finite number above 0"),
    _bounds("--xi", "inf", "xi=inf must lie in (0, inf): pass a finite number above 0"),
]

CHECKED = [
    Case(["check-vectors", "gone.npz"], f"vectors file gone.npz does not exist or is not a file: {VECTORS}"),
    Case(["check-vectors", "."], f"vectors file . does not exist or is not a file: {VECTORS}"),
    Case(["check-vectors", "x"], f"x is not an .npz archive, or cut short: {VECTORS}", {"x": ""}),
    Case(["check-vectors", "x"], f"x is not an .npz archive, or cut short: {VECTORS}", {"x": b"PK\x03\x04"}),
    Case(["check-vectors", "x"], f"x has no array 'manifest': {VECTORS}", {"x": _archive(a=numpy.zeros(2))}),
    Case(
        ["check-vectors", "x"],
        "the manifest of x is not usable (",
        {"x": _archive(manifest=numpy.array("{"))},
    ),
    Case(
        ["check-vectors", "x"],
        "x cannot be read (",
        {"x": _archive(manifest=numpy.array([{}], dtype=object))},
    ),
    Case(["check-vectors", "x"], f"{VECTORS}", {"x": _pickled()}),
]

DOCTOR = [
    _doctor("--core", "tpu", says="unknown core 'tpu': valid: exact, mini, verl"),
    _doctor("--core", "", says="unknown core '': valid: exact, mini, verl"),
    _doctor(
        "--core",
        "mini,verl",
        says="override 'core=mini,verl': core takes one value here; a sweep takes several",
    ),
    _doctor(
        "seed=0,1", says="override 'seed=0,1': seed takes one value here; a sweep takes several: seed=1,2"
    ),
    _doctor("seed=x", says="configuration: seed='x': must be a whole number in [0, 2147483648)"),
    _doctor("novalue", says="override 'novalue' is not key=value as Hydra reads it"),
    _doctor("paths.data=5", says="paths: data=5: must be text: quote it"),
    _doctor("paths.data=${oc.env:HOME}", says="${NAME:...} is not resolved: write the value itself"),
    _doctor("model=../../x", says="unknown model '../../x': valid: exact_early"),
]

DATA = [
    Case(
        ["data", "check", "gone"],
        "gone holds no manifest.json: prepare data with `cppo data prepare --out gone`",
    ),
    Case(
        ["data", "check", "x"],
        "x holds no manifest.json: prepare data with `cppo data prepare --out x`",
        {"x": ""},
    ),
    Case(["data", "check", "d"], f"d/manifest.json is changed: …{PREPARE}", {"d/manifest.json": "{}"}),
    Case(
        ["data", "check", "d"], f"d/manifest.json is changed: …{PREPARE}", {"d/manifest.json": "[" * 100_000}
    ),
    Case(["data", "check", "d"], f"d/manifest.json is changed: …{PREPARE}", {"d/manifest.json": b"\xff\xfe"}),
    Case(
        ["data", "check", "d"],
        f"d/manifest.json is changed: …{PREPARE}",
        {"d/manifest.json": '{"sha256": 5, "files": []}'},
    ),
    Case(
        ["data", "prepare", "--from", "gone"], "--from gone: no such file or folder; valid: hub, sample, or"
    ),
    Case(["data", "prepare", "--out", "x"], "--out x is a file: name a folder", {"x": ""}),
    Case(
        ["data", "prepare", "--out", "d"],
        "--out d is in use (y): name a new folder, or move that away",
        {"d/y": ""},
    ),
    Case(
        ["data", "prepare", "--from", "d"],
        "the folder holds no training set; name it one of train.jsonl",
        {"d/x": ""},
    ),
    Case(
        ["data", "prepare", "--from", "d"],
        "d holds several files for train (train.jsonl, train.parquet): leave one",
        {"d/train.jsonl": "", "d/train.parquet": ""},
    ),
    Case(
        ["data", "prepare", "--from", "t.txt"],
        "t.txt is neither .jsonl nor .parquet: convert it",
        {"t.txt": "x"},
    ),
    Case(
        ["data", "prepare", "--from", "t.parquet"],
        "t.parquet cannot be read as parquet …: fetch or write",
        {"t.parquet": "PAR1"},
    ),
    _rows("", " holds no row to train on: pass another file with --from"),
    _rows("{", f", line 1 is not a row in JSON (…): {ROW}"),
    _rows("[]\n", ", line 1 is list, not an object: write one {...} per line"),
    _rows("[" * 100_000 + "\n", f", line 1 is nested too deeply to be a row: {ROW}"),
    _rows('{"problem": "", "answer": "1"}\n', ", line 1: `problem` is '': give a text that is not empty"),
    _rows(
        '{"problem": "x", "answer": 1.5}\n',
        ", line 1: `answer` is 1.5, a binary fraction: write the answer as text",
    ),
    _rows(
        '{"problem": "x", "answer": NaN}\n',
        f", line 1 is not a row in JSON (the value NaN is not a JSON number): {ROW}",
    ),
    _rows('{"problem": "x", "answer": true}\n', ", line 1: `answer` is True: give the answer as text"),
    _rows(
        '{"question": "x"}\n',
        ", line 1: neither `prompt` nor `problem` is among the keys ['question']: each row needs",
    ),
    _rows(
        '{"prompt": "x", "reward_model": {"ground_truth": "1"}}\n',
        ", line 1: `prompt` is 'x': give a list of one message",
    ),
    _rows(
        b'{"problem": "\xff", "answer": 1}\n',
        ", line 1 is not UTF-8 (byte 0xff at 13): save the file as UTF-8",
    ),
    _rows(
        '{"problem": "x\\ud800", "answer": 1}\n',
        ", line 1: `problem` holds half a surrogate pair at character 1: write",
    ),
    _rows('{"problem": "x", "answer": ' + "9" * 5000 + "}\n", f", line 1 is not a row in JSON (…): {ROW}"),
    Case(
        ["data", "prepare", "--from", "d"],
        "d/aime24.jsonl has 1 problems, aime24 has 30 (both papers of the year): complete the file",
        {
            "d/train.jsonl": '{"problem": "x", "answer": 1}\n',
            "d/aime24.jsonl": '{"problem": "x", "answer": 1}\n',
        },
    ),
    Case(
        ["data", "prepare", "--from", "d"],
        "d/aime24.jsonl, line 1: the answer is '1000': AIME answers are whole numbers from 0 to 999",
        {
            "d/train.jsonl": '{"problem": "x", "answer": 1}\n',
            "d/aime24.jsonl": '{"problem": "x", "answer": 1000}\n',
        },
    ),
]

CASES = [*BOUNDS, *CHECKED, *DOCTOR, *DATA]
