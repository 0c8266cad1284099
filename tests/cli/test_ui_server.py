"""`cppo ui` with a real server: it answers until it is ended, and nothing of it stays behind."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.cli.test_ui import empty_store
from tests.waiting import CEILING_SECONDS


def processes_of(text: str) -> list[psutil.Process]:
    """Processes whose environment has `text`."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if text in (process.info["environ"] or {}).values()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_ended_and_leaves_nothing(workspace: Path, number: int) -> None:
    uri = empty_store()
    with subprocess.Popen(
        [sys.executable, "-m", "cppo_lab.cli", "ui"],
        env=os.environ | {"MLFLOW_TRACKING_URI": uri},
        stdout=subprocess.PIPE,
        text=True,
        # Children inherit it: the tests may be in the background of a script, where SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as served:
        title, link = served.stdout.readline(), served.stdout.readline().strip()
        assert title.startswith("cppo-mini")
        found = re.match(r"(http://127\.0\.0\.1:\d+)/#/experiments/1/runs\?", link)
        assert found, link
        with urllib.request.urlopen(found[1], timeout=CEILING_SECONDS) as answer:
            assert b"<title>MLflow</title>" in answer.read()
        assert len(processes_of(uri)) > 1
        served.send_signal(number)
        assert served.wait(CEILING_SECONDS) == 0
    assert processes_of(uri) == []
