"""Folders of runs and reports in which others have written, and files where folders should be."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.hostile.case import Case

ID = "0123456789ab"
RUN = ["quickstart", "variant=grpo", "seed=0"]
AGAIN = "make the report again with `cppo report`"
NOT_OURS = (
    "exists and is not a report of ours (it has no .cppo-report): choose another folder with --out, or remove"
)


@cache
def _folders(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in names:
            (folder / name).mkdir(parents=True)

    return make


@cache
def _link(name: str, target: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)

    return make


def _record(content: str | bytes, says: str) -> Case:
    return Case(["compare", "a", "a"], f"a/report.json {says}", {"a/report.json": content})


RUNS = [
    Case(["launch", *RUN], "runs is a file, but runs keep their folders there: move it away", {"runs": ""}),
    Case(["launch", *RUN], "runs is a circular link: remove it", make=_link("runs", "runs")),
    Case(["plan", *RUN], "runs is a circular link: remove it", make=_link("runs", "runs")),
    Case(["status"], "runs is a circular link: remove it", make=_link("runs", "runs")),
    Case(["sync"], "runs is a circular link: remove it", make=_link("runs", "runs")),
    Case(["logs", "1234"], "runs is a circular link: remove it", make=_link("runs", "runs")),
    Case(
        ["status"],
        "slurm.db: file is not a database: …move it away if it is damaged",
        {"runs/slurm.db": "junk" * 100},
    ),
    Case(
        ["logs", ID], f"run {ID}: it has no output and no training step", make=_folders(f"runs/{ID}/attempts")
    ),
    Case(
        ["logs", ID, "-f", "--all"],
        "--all with -f: only the newest attempt grows; omit one of them",
        {f"runs/{ID}/status.json": "{}"},
    ),
    Case(
        ["logs", "0123"],
        "run '0123' is a prefix of 2 ids: 0123456789ab, 0123456789ac: give more digits",
        {f"runs/{ID}/status.json": "{}", "runs/0123456789ac/status.json": "{}"},
    ),
    Case(
        ["cancel", "--run", "0123"],
        "run '0123' is a prefix of 2 ids: 0123456789ab, 0123456789ac: give more digits",
        {f"runs/{ID}/status.json": "{}", "runs/0123456789ac/status.json": "{}"},
    ),
    Case(
        ["diff", "0123", "0123"],
        "run '0123' is a prefix of 2 ids: 0123456789ab, 0123456789ac: give more digits",
        {f"runs/{ID}/config.json": '{"seed": 1e400}', "runs/0123456789ac/config.json": '{"seed": {}}'},
    ),
]

REPORTS = [
    Case(["report", *RUN, "--out", "d"], f"d {NOT_OURS}", {"d/mine.txt": "x"}, store=True),
    Case(["report", *RUN, "--out", "f"], f"f {NOT_OURS}", {"f": "x"}, store=True),
    Case(["report", *RUN, "--out", "l"], f"l {NOT_OURS}", make=_link("l", "."), store=True),
    Case(["report", *RUN, "--out", "l"], f"l {NOT_OURS}", make=_link("l", "gone"), store=True),
    Case(["report", *RUN, "--out", "l"], f"l {NOT_OURS}", make=_link("l", "l"), store=True),
    Case(["report", *RUN, "--out", ""], NOT_OURS, store=True),
    Case(["report", *RUN, "--out", "d"], f"d {NOT_OURS}", {"d/index.html": "x"}, store=True),
    Case(["report", *RUN, "--out", "d"], f"d {NOT_OURS}", make=_folders("d/.cppo-report"), store=True),
    Case(["report", "tune_cppo", "--out", "d"], f"d {NOT_OURS}", {"d/mine.txt": "x"}, store=True),
    Case(
        ["report", "main", "--from", "paper", "--out", "d"], f"d {NOT_OURS}", {"d/mine.txt": "x"}, store=True
    ),
    Case(
        ["report", "study", "--from", "paper", "--out", "d"], f"d {NOT_OURS}", {"d/mine.txt": "x"}, store=True
    ),
    Case(["compare", "a", "b"], f"a is not a report, it has no report.json: {AGAIN}", {"a/y": "", "b/y": ""}),
    Case(["compare", "", ""], f". is not a report, it has no report.json: {AGAIN}"),
    Case(
        ["compare", "a", "a"],
        f"a is not a report, it has no report.json: {AGAIN}",
        make=_folders("a/report.json"),
    ),
    Case(
        ["compare", "a", "a"],
        f"a is not a report, it has no report.json: {AGAIN}",
        make=_link("a/report.json", "report.json"),
    ),
    _record("", f"is not JSON (…): {AGAIN}"),
    _record("{", f"is not JSON (…): {AGAIN}"),
    _record("[]", f"is not a JSON object: {AGAIN}"),
    _record("{}", f"has format None, not 'cppo-report-1': {AGAIN}"),
    _record('{"format": 99}', f"has format 99, not 'cppo-report-1': {AGAIN}"),
    _record('{"format": "cppo-report-1"}', f"lacks the list 'sweeps': {AGAIN}"),
    _record(
        '{"format": "cppo-report-1", "sweeps": [], "verdicts": [], "figures": {}, "files": {}, "kind": 5}',
        f"has kind=5, which is no text: {AGAIN}",
    ),
    _record(b"\xff\xfe\x00", f"is not JSON (…): {AGAIN}"),
    _record("[" * 100_000, f"is not JSON (…): {AGAIN}"),
    _record("9" * 5000, f"is not JSON (…): {AGAIN}"),
]

CASES = [*RUNS, *REPORTS]
