"""A report's page in a real browser: its curves answer to the pointer, it fits a phone, and it asks for nothing."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cppo_lab.reports.build import build_report
from cppo_lab.reports.sections import mlflow_link, mlflow_path
from tests.browser.conftest import WAIT_MS
from tests.reports.made_answers import value, write_pair
from tests.requirement import BROWSER
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

HOSTILE = '8B</script><img src="x" onerror="document.title=1">'


@pytest.fixture(scope="module")
def address(shared_path: Path) -> str:
    """A report on disk, with a model whose name tries to break out of the page."""
    BROWSER.demand()
    return build_report(write_pair(shared_path, HOSTILE)[0]).as_uri()


def watched(browser: "Browser", address: str) -> "Iterator[Page]":
    """A page at desktop width; afterwards it must have said nothing and asked for nothing but itself."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    said, asked = list[str](), list[str]()
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    yield page
    assert page.title() == "Demo"  # hostile texts set another
    page.close()
    assert (said, asked) == ([], [address])


@pytest.fixture
def opened(browser: "Browser", address: str) -> "Iterator[Page]":
    """The page at desktop width."""
    yield from watched(browser, address)


def on_the_curve(page: "Page", name: str, step: int) -> tuple[float, float]:
    """The place on the screen of a point of the first panel's curve."""
    svg = page.locator("#figure_curves svg")
    svg.scroll_into_view_if_needed()
    x, y = svg.evaluate(
        """(svg, [name, step]) => {
            const [panel] = JSON.parse(svg.closest("figure").querySelector("script").textContent);
            const [left, top, width, height] = panel.box, [x0, x1] = panel.x, [y0, y1] = panel.y;
            const line = panel.lines.find((line) => line.name === name), value = line.y[line.x.indexOf(step)];
            const at = new DOMPoint(left + (step - x0) / (x1 - x0) * width, top + (y1 - value) / (y1 - y0) * height);
            const there = at.matrixTransform(svg.getScreenCTM());
            return [there.x, there.y];
        }""",
        [name, step],
    )
    return x, y


def test_the_pointer_finds_the_values_of_a_curve(opened: "Page") -> None:
    tip = opened.locator("#figure_curves .tip")
    assert tip.is_hidden()
    for name, base in (("CPPO", 0.35), ("DPPO", 0.25)):
        x, y = on_the_curve(opened, name, 100)
        opened.mouse.move(x + 1, y - 1)
        mean = 50 * (value(base, 0, 100) + value(base, 1, 100))
        assert tip.inner_text() == f"{name}\ntraining step 100: {mean:.4g}"
    opened.mouse.move(5, 5)
    assert tip.is_hidden()


def test_every_number_of_the_tables_leads_to_its_runs(opened: "Page") -> None:
    links = opened.locator("td.num a[href^='#runs-']")
    assert links.count() > 10
    for href in {link.get_attribute("href") for link in links.all()}:
        assert opened.locator(f"tbody{href}").count() == 1
    cells = opened.locator("#scores td.num, #statistics td")
    assert cells.count() > 10 and cells.filter(has_not=opened.locator("a")).count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(opened: "Page", scheme: str) -> None:
    choose_scheme(opened, scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.locator("#curves .scroll").first.evaluate("node => node.scrollWidth <= node.clientWidth")
    card = opened.locator("#curves .card").first.evaluate("node => getComputedStyle(node).backgroundColor")
    assert (card == "rgb(24, 29, 35)") == (scheme == "dark")
    for selector in ("body", ".quiet", ".verdict.undecided", "#figure_curves text", "td a", ".origin"):
        assert contrast(opened, selector) >= 4.5, selector


def choose_scheme(page: "Page", scheme: str) -> None:
    """The width of a phone, and this colour scheme."""
    page.set_viewport_size({"width": 390, "height": 844})
    button = page.get_by_role("button", name="Colours")
    while button.inner_text() != f"Colours: {scheme}":
        button.click()


def contrast(page: "Page", selector: str) -> float:
    """WCAG's contrast of a text with what lies behind it."""
    colours = page.evaluate(
        """selector => {
            const node = document.querySelector(selector), style = getComputedStyle(node);
            let behind = node, back = "";
            for (; behind; behind = behind.parentElement) {
                back = getComputedStyle(behind).backgroundColor;
                if (back !== "rgba(0, 0, 0, 0)") break;
            }
            return [node instanceof SVGElement ? style.fill : style.color, back];
        }""",
        selector,
    )
    luminances = []
    for colour in colours:
        coded = np.array(re.findall(r"\d+", colour)[:3], float) / 255
        linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
        luminances.append(linear @ (0.2126, 0.7152, 0.0722))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_contents_stay_in_view_and_open_what_they_lead_to(opened: "Page", width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    runs = opened.locator(".contents").get_by_role("link", name="Runs", exact=True)
    table = opened.locator("#runs table")
    assert table.is_hidden()
    runs.click()
    table.wait_for()  # the page opens the section behind the click
    opened.mouse.wheel(0, 10_000)
    opened.wait_for_function("() => scrollY > 0")
    box = opened.locator(".contents").bounding_box()
    assert -1 <= box["y"] <= 900
    opened.locator("#runs summary").click()
    table.wait_for(state="hidden")
    runs.click()  # the address is the same as before
    table.wait_for()


def test_a_table_that_is_too_wide_says_so(opened: "Page") -> None:
    opened.set_viewport_size({"width": 390, "height": 844})
    opened.locator("#runs summary").click()
    for more in ("", "!"):
        opened.wait_for_function(
            f"() => {more}document.querySelector('#runs .scroll').classList.contains('more')"
        )
        opened.locator("#runs .scroll").evaluate("node => { node.scrollLeft = node.scrollWidth; }")


@pytest.mark.parametrize(
    "mlflow, count",
    [("http://127.0.0.1:5001/base", 4), ("http://example.org", 0), ("javascript:alert(1)", 0)],
)
def test_runs_lead_to_the_mlflow_that_the_address_names(
    browser: "Browser", address: str, mlflow: str, count: int
) -> None:
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{address}?mlflow={mlflow}")
    links = page.locator("#runs a[href*='/runs/']")
    assert links.count() == count
    for link in links.all():
        assert link.get_attribute("href") == mlflow_link(mlflow, mlflow_path("1", str(link.text_content())))
    page.close()


def test_paper_has_everything_unfolded_and_in_colour_and_no_controls(opened: "Page") -> None:
    opened.emulate_media(media="print")
    assert opened.locator("#runs table").evaluate("node => node.getBoundingClientRect().height") > 50
    accent = "getComputedStyle(document.documentElement).getPropertyValue('--accent')"
    assert opened.evaluate(accent).strip() == "#0052d9"
    assert opened.locator("#figure_curves svg").is_visible()
    for selector in (".contents", ".scheme", ".tip"):
        assert opened.locator(selector).first.is_hidden()


def test_the_policy_lets_no_other_script_run(browser: "Browser", address: str) -> None:
    page, said = browser.new_page(), []
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda message: said.append(message.text))
    page.goto(address)
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "document.title = 'broken'";
            document.body.append(script);
            new Image().src = "http://127.0.0.1:9/x.png";
        }"""
    )
    until(  # the browser says what it refused
        "it has refused both",
        lambda: re.search("script-src.*img-src", " ".join(said), re.DOTALL) or page.wait_for_timeout(10),
    )
    assert page.title() == "Demo"
    page.close()
