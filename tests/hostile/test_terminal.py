"""What a run has printed, and what strangers have written, steers no terminal: its colours alone pass."""

import os
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState, create_trial

from cppo_lab.data.prepare import FileRecord, summary
from cppo_lab.plugins import Check
from cppo_lab.search.study import REASON, _line
from cppo_lab.sweep.columns import aligned, to_csv
from cppo_lab.sweep.doctor import lines
from cppo_lab.testing.vectors import Mismatch, Report
from cppo_lab.tracking.client import fault_line
from tests.conftest import Command

RUN = "0123456789ab"
# Title, clipboard, clear, cursor, alternate screen, one of the eight-bit forms, bell, backspace, direction of text.
STEERING = "\x1b]0;t\x07 \x1b]52;c;eA==\x1b\\ \x1b[2J \x1b[3A \x1b[?1049h \x9b2J \x07 \b \x7f \u202e"
SHOWN = r"\x1b]0;t\x07 \x1b]52;c;eA==\x1b\ \x1b[2J \x1b[3A \x1b[?1049h \x9b2J \x07 \x08 \x7f \u202e"
COLOURS = "\x1b[31mred\x1b[0m \x1b[1;38;5;9mbold\x1b[m \x1b[38:2:1:2:3mtrue"
LINES = "50 %\r100 %\n\ttab, é, 漢\u3000字\n"


def printed(text: str, name: str = "1_0_log.out") -> Path:
    path = Path("runs", RUN, "attempts", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("follow", ["", "-f"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_output_has_its_lines_and_colours(cppo: Command, follow: str, end: str) -> None:
    printed(f"{LINES}{COLOURS}{STEERING}{end}")
    assert cppo(f"logs {RUN} {follow}").out == f"{LINES}{COLOURS}{SHOWN}{end}"


def test_a_traceback_and_the_name_of_a_file(cppo: Command) -> None:
    files = [printed("", f"\x1b[2J_log.{kind}") for kind in ("out", "err")]
    assert cppo("logs", RUN).out.count(r"\x1b[2J_log") == 2
    for path in files:
        path.unlink()
    Path("runs", RUN, "traceback.txt").write_text(STEERING)
    assert cppo("logs", RUN).out == SHOWN


@pytest.mark.parametrize("option", ["", "--all", "-f", "--json"])
@pytest.mark.parametrize(
    "place", ["attempts/2_0_log.out", "attempts/1_0_log.err", "attempts", "traceback.txt"]
)
def test_links_among_output_are_not_followed(cppo: Command, place: str, option: str) -> None:
    secret = Path("elsewhere").absolute()
    secret.mkdir()
    for name in ("2_0_log.out", "file"):
        (secret / name).write_text("of somebody else")
    link = Path("runs", RUN, place)
    if place == "attempts":
        link.parent.mkdir(parents=True)
        link.symlink_to(secret)
    else:
        os.utime(printed("ours\n"), (1, 1))  # so that the link leads to newer output
        link.symlink_to(secret / "file")
    is_refused = place == "attempts" and option in ("", "--all")
    text = cppo(f"logs {RUN} {option}", code=2 if is_refused else 0).out
    assert "of somebody else" not in text
    assert ("ours" in text) == (place != "attempts")


FAILED = create_trial(state=TrialState.FAIL, user_attrs={REASON: STEERING})
TEXTS: dict[str, Any] = {
    "a cell of a table": lambda: aligned(["run id"], [[STEERING]]),
    "a cell of a CSV file": lambda: to_csv(["name", "variants"], [{"name": STEERING, "variants": {}}]),
    "what a store answers": lambda: fault_line(ValueError(STEERING)),
    "what a check has found": lambda: "".join(lines([Check("driver", "ok", STEERING)])),
    "where data is from": lambda: summary({"train": FileRecord(1, 1, 0, 0, [], STEERING, "", "", "")}),
    "why a trial failed": lambda: _line(FAILED, None),  # type: ignore[arg-type]
    "an array of vectors": lambda: "".join(Report(1, [], [STEERING]).lines()),
    "a mismatch of vectors": lambda: "".join(Report(1, [Mismatch(STEERING, "", "1", "2", "")], []).lines()),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_texts_of_others(text: Any) -> None:
    assert SHOWN in text()
    assert text().replace("\n", "").isprintable()
