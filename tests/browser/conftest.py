"""A real MLflow page in a real browser, over the runs of a launched sweep. Shared by the tests of this folder."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cppo_lab.sweep.launch import launch
from cppo_lab.tracking.address import tracking_uri
from dev.servers.group import free_port
from tests.cli.test_ui import processes_of
from tests.conftest import working_in
from tests.jobs import planned
from tests.plausible import train
from tests.requirement import BROWSER, CHROMIUM
from tests.waiting import CEILING_SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# MLflow opens its assistant over a third of the page at the first visit.
_SEEN = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
WAIT_MS = 1000 * CEILING_SECONDS  # for whatever a page has to show


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite store with the quickstart launched into it: three methods, two seeds."""
    BROWSER.demand()
    with working_in(tmp_path_factory.mktemp("browser")) as patched:
        patched.setattr("cppo_lab.runs.attempt.load_core", lambda name: train)
        uri = tracking_uri()
        done = launch(planned("quickstart launcher=inline"), uri)
        assert {state.state for state in done.states.values()} == {"done"}
    return uri


@pytest.fixture(scope="module")
def links(store: str) -> Iterator[list[str]]:
    """The addresses that `cppo ui` prints, while it serves them."""
    with subprocess.Popen(
        # on a port that no other session of the tests is given
        [sys.executable, "-m", "cppo_lab.cli", "ui", "--port", str(free_port())],
        env=os.environ | {"MLFLOW_TRACKING_URI": store},
        stdout=subprocess.PIPE,
        text=True,
        # Children inherit it: the tests may be in the background of a script, where SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as served:
        assert served.stdout is not None
        printed = (re.findall(r"http://\S+", line) for line in served.stdout)
        try:
            yield next(filter(None, printed), [])
        finally:
            served.send_signal(signal.SIGINT)
            assert served.wait(CEILING_SECONDS) == 0
            assert processes_of(store) == []


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    """A headless Chromium, for these tests alone: until Playwright is closed, no other test of the process can run an
    event loop.
    """
    BROWSER.demand()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox"], timeout=WAIT_MS
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def browser_page(links: list[str], browser: "Browser") -> "Iterator[Page]":
    """One page, for all tests of a file."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.add_init_script(_SEEN)
    page.set_default_timeout(WAIT_MS)
    yield page
    page.close()
