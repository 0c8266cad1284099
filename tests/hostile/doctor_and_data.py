"""Arguments of `cppo doctor` and `data`, and the files that they read."""

from tests.hostile.case import Case, Content

PREPARE = "prepare the data again"
ROW = "fix or drop it"


def _rows(content: Content, says: str) -> Case:
    return Case(["data", "prepare", "--from", "rows.jsonl"], f"rows.jsonl{says}", {"rows.jsonl": content})


def _doctor(*words: str, says: str) -> Case:
    return Case(["doctor", *words], says)


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

CASES = [*DOCTOR, *DATA]
