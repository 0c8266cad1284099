"""`cppo ui` with a real server: it answers until it is ended, and nothing of it stays behind."""

import os
import re
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
def test_it_serves_until_it_is_terminated_and_leaves_nothing(workspace: Path) -> None:
    """Until Ctrl-C: tests/browser/conftest.py."""
    uri = empty_store()
    with subprocess.Popen(
        [sys.executable, "-m", "cppo_lab.cli", "ui"],
        env=os.environ | {"MLFLOW_TRACKING_URI": uri},
        stdout=subprocess.PIPE,
        text=True,
    ) as served:
        title, link = served.stdout.readline(), served.stdout.readline().strip()
        assert title.startswith("cppo-mini")
        found = re.match(r"(http://127\.0\.0\.1:\d+)/#/experiments/1/runs\?", link)
        assert found, link
        with urllib.request.urlopen(found[1], timeout=CEILING_SECONDS) as answer:
            assert b"<title>MLflow</title>" in answer.read()
        assert len(processes_of(uri)) > 1
        served.terminate()
        assert served.wait(CEILING_SECONDS) == 0
    assert processes_of(uri) == []
