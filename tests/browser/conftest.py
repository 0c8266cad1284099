"""A real MLflow page in a real browser, over the runs of a launched sweep. Shared by the tests of this folder."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cppo_lab.runs import attempt
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.launch import launch
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking.address import tracking_uri
from dev.servers.group import free_port
from tests.plausible import train
from tests.requirement import BROWSER, CHROMIUM
from tests.waiting import CEILING_SECONDS, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

# MLflow opens its assistant over a third of the page at the first visit.
_SEEN = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
WAIT_MS = 1000 * CEILING_SECONDS  # for whatever a page has to show
AGAIN_MS = 10_000  # until a click that has shown nothing is repeated


def click_until(clicked: "Locator", shown: "Locator") -> None:
    """Click on what `clicked` finds until the page has what `shown` finds.

    MLflow draws a page again when more of its data has come. A click in that moment is lost: the element under the
    pressed button is not the one under the released button.
    """
    from playwright.sync_api import TimeoutError as NotYet

    def has_shown() -> bool:
        with contextlib.suppress(NotYet):
            clicked.click(timeout=AGAIN_MS)
        with contextlib.suppress(NotYet):
            shown.wait_for(state="attached", timeout=AGAIN_MS)
        return shown.count() > 0

    until("the page has what the click opens", has_shown)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite store with the quickstart launched into it: three methods, two seeds."""
    BROWSER.demand()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("browser"))
        patched.delenv("MLFLOW_TRACKING_URI", raising=False)
        patched.setattr(attempt, "load_core", lambda name: train)
        uri = tracking_uri()
        done = launch(make_plan(load_sweep("quickstart"), ["launcher=inline"]), uri)
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
        found: list[str] = []
        for line in served.stdout:
            found += re.findall(r"http://\S+", line)
            if found:
                break
        try:
            yield found
        finally:
            served.send_signal(signal.SIGINT)
            assert served.wait(CEILING_SECONDS) == 0


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


@pytest.fixture(scope="module")
def shot(browser_page: "Page", tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Keeps a picture of the page in the folder CPPO_SCREENSHOTS, or in one of pytest's own."""
    named = os.environ.get("CPPO_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> Path:
        path = folder / f"{name}.png"
        browser_page.screenshot(path=path)
        return path

    return take
