"""Files and folders that a command meets: runs, reports, data, stores of MLflow and of searches."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.hostile.case import Case, Content

ID = "0123456789ab"
RUN = "quickstart variant=grpo seed=0"
PREPARE = "prepare the data again"
ROW = "fix or drop it"
AGAIN = "make the report again with `cppo report`"
NOT_OURS = (
    "exists and is not a report of ours (it has no .cppo-report): choose another folder with --out, or remove"
)
TWO_IDS = "run '0123' is a prefix of 2 ids: 0123456789ab, 0123456789ac: give more digits"
TWO_RUNS = {f"runs/{ID}/status.json": "{}", "runs/0123456789ac/status.json": "{}"}
TRAIN = '{"problem": "x", "answer": 1}\n'


def _folder(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).mkdir(parents=True)


def _link(name: str, target: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)

    return make


def _for_everybody(folder: Path) -> None:
    (folder / "runs").mkdir()
    (folder / "runs").chmod(0o777)


RUNS = [
    *(
        Case(words, "runs is writable for every user", make=_for_everybody)
        for words in (f"launch {RUN}", "tune tune_cppo")
    ),
    Case("report bad.zip", "bad.zip cannot be read as a file of `cppo archive`", {"bad.zip": "text"}),
    Case(f"launch {RUN}", "runs is a file, but runs keep their folders there: move it away", {"runs": ""}),
    Case(f"launch {RUN}", "runs/identity is damaged: remove it", {"runs/identity": ""}, store=True),
    *(
        Case(words, "runs is a circular link: remove it", make=_link("runs", "runs"))
        for words in (f"launch {RUN}", "status")
    ),
    Case(
        "status",
        "slurm.db: file is not a database: …move it away if it is damaged",
        {"runs/slurm.db": "junk" * 100},
    ),
    Case(
        f"logs {ID}", f"run {ID}: it has no output and no training step", make=_folder(f"runs/{ID}/attempts")
    ),
    Case(f"logs {ID} -f --all", "--all with -f: only the newest attempt grows; omit one of them", TWO_RUNS),
    Case(f"logs {ID} -f --json", "--json with -f: the object is printed at once; omit one", TWO_RUNS),
    Case(f"note {ID} x", "has no record here: note on it where it was trained", TWO_RUNS),
    Case(
        "doctor core=verl model=tiny_qwen3 data=files data.train=t.jsonl data.validation.train=t.jsonl",
        "no validation set is called 'train'",
        {"t.jsonl": TRAIN},
    ),
    Case("cancel --run 0123", TWO_IDS, TWO_RUNS),
    Case(
        "diff 0123 0123",
        TWO_IDS,
        {f"runs/{ID}/config.json": '{"seed": 1e400}', "runs/0123456789ac/config.json": '{"seed": {}}'},
    ),
]

OCCUPIED: list[tuple[str, str, dict[str, Content] | Callable[[Path], None]]] = [
    (RUN, "d", {"d/mine.txt": "x"}),
    (RUN, "f", {"f": "x"}),
    (RUN, "l", _link("l", "gone")),
    (RUN, "l", _link("l", "l")),
    (RUN, "''", {}),
    (RUN, "d", _folder("d/.cppo-report")),
    ("tune_cppo", "d", {"d/mine.txt": "x"}),
    ("main --from paper", "d", {"d/mine.txt": "x"}),
    ("study --from paper", "d", {"d/mine.txt": "x"}),
]
RECORDS: dict[Content, str] = {
    "{": "is invalid: Invalid JSON: …",
    '{"format": 99}': "has format=99: Input should be 'cppo-report-1'",
    '{"format": "cppo-report-1"}': "has kind: Field required",
    '{"format": "cppo-report-1", "sweeps": [], "verdicts": [], "figures": {}, "files": {}, "kind": 5}': (
        "has kind=5: Input should be a valid string"
    ),
    "[" * 100_000: "is invalid: Invalid JSON: …",
}
NO_RECORD = f"a is not a report, it has no report.json: {AGAIN}"
REPORTS = [
    *(
        Case(
            f"report {words} --out {out}",
            f"{out.strip(chr(39))}…{NOT_OURS}",
            there if isinstance(there, dict) else {},
            make=None if isinstance(there, dict) else there,
            store=True,
        )
        for words, out, there in OCCUPIED
    ),
    *(
        Case("compare a a", f"a/report.json {says}: {AGAIN}", {"a/report.json": content})
        for content, says in RECORDS.items()
    ),
    Case("compare a b", NO_RECORD, {"a/y": "", "b/y": ""}),
    Case("compare a a", NO_RECORD, make=_folder("a/report.json")),
    Case("compare a a", NO_RECORD, make=_link("a/report.json", "report.json")),
    Case(
        "compare x x", "'x' is no folder, and reports/build/x is none: name the folder of a report", {"x": ""}
    ),
]

CHANGED: tuple[Content, ...] = ("{}", "[" * 100_000, b"\xff\xfe", '{"sha256": 5, "files": []}')
ROWS: dict[Content, str] = {
    "": " holds no row to train on (0 rows read): mend it, or pass another file",
    "{": f", line 1 is not a row in JSON (…): {ROW}",
    "[]\n": ", line 1 is list, not an object: write one {...} per line",
    "[" * 100000 + "\n": f", line 1 is nested too deeply to be a row: {ROW}",
    '{"problem": "", "answer": "1"}\n': ", line 1: `problem` is '': give a text that is not empty",
    '{"problem": "x", "answer": 1.5}\n':
        ", line 1: `answer` is 1.5, a binary fraction: write the answer as text",
    '{"problem": "x", "answer": NaN}\n':
        f", line 1 is not a row in JSON (the value NaN is not a JSON number): {ROW}",
    '{"problem": "x", "answer": true}\n': ", line 1: `answer` is True: give the answer as text",
    '{"problem": "x", "answer": 1, "answer": 2}\n': f", line 1 is not a row in JSON ('answer' appears twice): {ROW}",
    '{"question": "x"}\n':
        ", line 1: neither `prompt` nor `problem` is among the keys with a value, ['question']: each row "
        "needs",
    '{"prompt": "x", "reward_model": {"ground_truth": "1"}}\n':
        ", line 1: `prompt` is 'x': give a list of messages {'role': 'user', 'content': ...} (roles: system, user, "
        "assistant)",
    b'{"problem": "\xff", "answer": 1}\n': ", line 1 is not UTF-8 (byte 0xff at 13): save the file as UTF-8",
    '{"problem": "x\\ud800", "answer": 1}\n':
        ", line 1: `problem` holds half a surrogate pair at character 1: write",
    '{"problem": "x", "answer": ' + "9" * 5000 + "}\n": f", line 1 is not a row in JSON (…): {ROW}",
}  # fmt: skip
DATA = [
    *(
        Case("data check d", f"d/manifest.json is changed: …{PREPARE}", {"d/manifest.json": content})
        for content in CHANGED
    ),
    *(
        Case("data prepare --from rows.jsonl", f"rows.jsonl{says}", {"rows.jsonl": content})
        for content, says in ROWS.items()
    ),
    Case(
        "data check x", "x holds no manifest.json: prepare data with `cppo data prepare --out x`", {"x": ""}
    ),
    Case("data prepare --out x", "--out x is a file: name a folder", {"x": ""}),
    Case("data prepare --out d", "--out d is in use (y): name a new folder, or move that away", {"d/y": ""}),
    Case("data prepare --from t.txt", "t.txt is neither .jsonl nor .parquet: convert it", {"t.txt": "x"}),
    Case(
        "data prepare --from t.parquet",
        "t.parquet cannot be read as parquet …: fetch or write",
        {"t.parquet": "PAR1"},
    ),
    *(
        Case("data prepare --from d", says, {f"d/{name}": content for name, content in files.items()})
        for says, files in {
            "the folder holds no training set; name it one of train.jsonl": {"x": ""},
            "d holds several files for train (train.jsonl, train.parquet): leave one": {
                "train.jsonl": "",
                "train.parquet": "",
            },
            "d/aime24.jsonl has 1 problems, aime24 has 30 (both papers of the year): complete the file": {
                "train.jsonl": TRAIN,
                "aime24.jsonl": TRAIN,
            },
            "d/aime24.jsonl, line 1: the answer is '1000': AIME answers are whole numbers from 0 to 999": {
                "train.jsonl": TRAIN,
                "aime24.jsonl": TRAIN.replace("1", "1000"),
            },
        }.items()
    ),
]

URI = "MLFLOW_TRACKING_URI"
FORMS = "is not supported: use sqlite:///FILE.db, http(s)://HOST:PORT or a postgresql:// URI"
NAME_A_FILE = "name a file, sqlite:///FILE.db (MLFLOW_TRACKING_URI, or tracking.uri in the configuration)"
ANOTHER = "set MLFLOW_TRACKING_URI to another"
UNSUPPORTED = (
    "./mlruns",
    "sqlite://",
    "sqlite:///",
    "sqlite+pysqlite:///x.db",
    " sqlite:///x.db",
    "sqlite:///:memory:",
    "http:///x",
    "http://h:99999",
    "http://h:0",
)
# A name that is not shown as it was given: as it is shown instead.
UNSUPPORTED_SHOWN = {
    "sqlite:///a\nb.db": "'sqlite:///a\\nb.db'",
    "http://h:port": "'http://h:***'",
    "http://[::1": "'http://[:***'",
    "https://u:secret@": "'https://u:***@'",
    "postgres://u:secret@h/d": "'postgres://u:***@h/d'",
}
UNUSABLE = {
    # SQLAlchemy looks for the host behind the first `@`, and a blank ends an address in any text.
    **{
        f"postgresql://u:{password}@h:1/d":
            f"tracking URI 'postgresql://u:***@h:1/d' {FORMS}…; in a password write `@`, `/`, `#` and such as %40"
        for password in ("se@cret", "se cret", "se/cret")
    },
    "postgresql+nodriver://u:secret@h/d":
        "postgresql+nodriver://u:***@h/d: its driver 'nodriver' is not installed",
    "mysql+../x://u:secret@h/d": "mysql+../x://u:***@h/d: its driver '../x' is not installed: install it",
    "sqlite:///x.db?mode=ro":
        f"sqlite:////…x.db?mode=ro: of a query only timeout=SECONDS is known: {NAME_A_FILE}",
    "sqlite:///x.db?timeout=abc":
        f"x.db?timeout=abc: of a query only timeout=SECONDS is known: {NAME_A_FILE}",
    f"sqlite:///{'x' * 300}.db": f"File name too long: {NAME_A_FILE}",
    "sqlite:////dev": f"tracking database /dev is a folder: {NAME_A_FILE}",
}  # fmt: skip
# `plan` asks no store; `pull` asks about runs that have no folder here. (A launch holds them.)
AWAY = {
    "http://127.0.0.1:1": "tracking store http://127.0.0.1:1 cannot be read: …Connection refused",
    "http://u:secret@127.0.0.1:1": "tracking store http://u:***@127.0.0.1:1 cannot be read: ",
    "http://127.0.0.1:1?password=secret": "tracking store http://127.0.0.1:*** cannot be read: ",
}


def _tables(name: str, *statements: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / name)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    return make


CUSTOMERS = _tables("shop.db", "CREATE TABLE customers (id INTEGER)")
SEARCHES = _tables(
    "shop.db",
    "CREATE TABLE studies (study_id INTEGER)",
    "CREATE TABLE alembic_version (version_num VARCHAR(32))",
    "INSERT INTO alembic_version VALUES ('v3.2.0.a')",
)
NEWER = _tables("mlflow.db", "UPDATE alembic_version SET version_num = 'ffffffffffff'")
OPENING = (f"report {RUN}", f"launch {RUN}", "reference import")
SHOP = {URI: "sqlite:///shop.db"}
NOWHERE = {URI: "sqlite:///nowhere/x.db"}
NO_EXPERIMENT = "experiment 'cppo-mini' does not exist in …run `cppo launch SWEEP` first"
NO_STORE = "mlflow.db does not exist: run `cppo launch SWEEP` or `cppo reference import` first"
STORES = [
    *(
        Case(f"plan {RUN}", f"tracking URI {shown} {FORMS}", environment={URI: uri})
        for uri, shown in ({uri: repr(uri) for uri in UNSUPPORTED} | UNSUPPORTED_SHOWN).items()
    ),
    *(Case(f"plan {RUN}", says, environment={URI: uri}) for uri, says in UNUSABLE.items()),
    *(Case(f"pull {RUN}", f"{says}…{ANOTHER}", environment={URI: uri}) for uri, says in AWAY.items()),
    Case(
        f"report {RUN}",
        "tracking store http://u:***@127.0.0.1:1 cannot be read: …set MLFLOW_TRACKING_URI to another one",
        environment={URI: "http://u:secret@127.0.0.1:1"},
    ),
    Case(
        "report quickstart_exact seed=0",
        "http://127.0.0.1:1 cannot be read",
        environment={URI: "http://127.0.0.1:1"},
    ),
    Case(
        f"report {RUN}",
        "http://127.0.0.1:1 cannot be read: …'abc' for MLFLOW_HTTP_REQUEST_TIMEOUT",
        environment={URI: "http://127.0.0.1:1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "abc"},
    ),
    *(
        Case(f"{command} {RUN}", f"mlflow.db is a folder: {NAME_A_FILE}", make=_folder("mlflow.db"))
        for command in ("plan", "launch")
    ),
    *(
        Case(command, f"tracking URI 'nonsense' {FORMS}", environment={URI: "nonsense"})
        for command in ("sync", "status", "doctor", "ui")
    ),
    *(
        Case(words, "nowhere/x.db does not exist, and neither does its folder", environment=NOWHERE)
        for words in ("plan quickstart", "status", "sync")
    ),
    *(
        Case(
            f"{command} {RUN}",
            f"shop.db cannot be {done}",
            {"shop.db": "no database, but long enough to be looked at " * 100},
            SHOP,
        )
        for command, done in (("launch", "used"), ("report", "read"))
    ),
    *(
        Case(words, "shop.db is not MLflow's: it has the tables customers: set", {}, SHOP, CUSTOMERS)
        for words in (*OPENING, "ui")
    ),
    *(
        Case(  # the server of `ui` has begun to start when the client is refused
            words,
            "mlflow.db is of another version of MLflow: …found version ffffffffffff…mlflow db upgrade",
            make=NEWER,
            store=True,
        )
        for words in OPENING
    ),
    Case(
        f"launch {RUN}",
        "shop.db is not MLflow's: it has the tables alembic_version, studies",
        {},
        SHOP,
        SEARCHES,
    ),
    Case(f"report {RUN}", NO_EXPERIMENT, store=True),
    Case("report tune_cppo", NO_EXPERIMENT, store=True),
    Case("report main --from paper", "run `cppo reference import` first", store=True),
    *(Case(words, NO_STORE) for words in (f"report {RUN}", "ui", "report main --from paper")),
]

PORT = "must be in [1, 65535]: leave it out, or choose another"
PAGE = {
    "ui --port 0": f"--port 0: {PORT}",
    "ui --port 99999": f"--port 99999: {PORT}",
    "ui --host ''": "--host '': name an address of this machine, or leave it out",
    "ui --host 192.0.2.1": "cannot listen on 192.0.2.1 port …: name an address of this machine",
}
FILE_OR_SERVER = "is not supported: use sqlite:///FILE.db, a path that ends in .journal"
JOURNAL = "is no record of Optuna's journal: name another file"
STORAGES = {
    "plan tune_cppo": ("x.db", f"storage 'x.db' {FILE_OR_SERVER}"),
    "tune tune_cppo": ("http://u:secret@h", f"storage 'http://u:***@h' {FILE_OR_SERVER}"),
    "tune tune_cppo --trials 3": (
        "sqlite:////nowhere/x.db",
        "folder /nowhere does not exist: make it, or name",
    ),
}
SEARCHES_OF_OTHERS: list[tuple[str, str, str]] = [
    ("sqlite:///n.db", "n.db cannot be used: …not a database", "no " * 500),
    ("n.journal", f"n.journal: line 1 {JOURNAL}", "my notes\n"),
    ("o.journal", f"o.journal: line 2 {JOURNAL}, or remove that line", '{"op_code": 0}\n[1]\n'),
]

# Files beside the name that is typed are offered.
BESIDE = {
    "plan mine": "unknown sweep 'mine': did you mean 'mine.yaml'? valid: ",
    "plan minne": "unknown sweep 'minne': did you mean 'mine.yaml'? valid: ",
    "plan ./mine": "sweep file ./mine does not exist: did you mean 'mine.yaml'? (shipped",
    "plan mine.yml": "sweep file mine.yml does not exist: did you mean 'mine.yaml'? (shipped",
    "plan sub/theirz.yaml": "sweep file sub/theirz.yaml does not exist: did you mean 'sub/theirs.yaml'? (shipped",
    "plan other.yaml": "sweep file other.yaml does not exist (shipped",
    "plan settings.yaml": "settings.yaml is no sweep file: it has the keys host, port",
    "plan notes": "notes is a file, but a sweep file ends with .yaml",
}
FILES: dict[str, Content] = {
    "mine.yaml": "title: T\nmodels: [mini_base]\n",
    "sub/theirs.yaml": "title: T\nmodels: [mini_base]\n",
    "settings.yaml": "host: a\nport: 1\n",
    "notes": "title: T\n",
}

CASES = [
    *(Case(words, says, FILES) for words, says in BESIDE.items()),
    *RUNS,
    *REPORTS,
    *DATA,
    *STORES,
    *(Case(words, says, store=True) for words, says in PAGE.items()),
    *(Case(words, says, environment={"OPTUNA_STORAGE": uri}) for words, (uri, says) in STORAGES.items()),
    *(
        Case(f"tune tune_cppo --storage {storage}", says, {storage.rpartition("/")[2]: text})
        for storage, says, text in SEARCHES_OF_OTHERS
    ),
]
