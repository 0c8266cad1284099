"""The page's part on answers in a real browser: maps, texts and the viewer of tokens, by pointer and by keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cppo_lab.analysis.replay import replay
from cppo_lab.reports.build import build_report
from tests.browser.conftest import WAIT_MS
from tests.browser.test_report_page import choose_scheme, contrast, watched
from tests.reports.made_answers import (
    CONSTANTS,
    IDS,
    T_STOP,
    TOKENS,
    add_answers,
    made_outcomes,
    made_tokens,
    write_pair,
)
from tests.requirement import BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser

# The chosen token is on the screen in both panes.
BOTH_SEEN = """() => [...document.querySelectorAll(".tokens")].every((box) => {
    const own = box.querySelector(".here").getBoundingClientRect(), all = box.getBoundingClientRect();
    return own.top >= all.top && own.bottom <= all.bottom;
})"""
# The next frames, in which the browser lays out what has come onto the screen.
FRAMES = """async () => {
    for (let i = 0; i < 10; i++) await new Promise((drawn) => requestAnimationFrame(drawn));
}"""
# How many chunks the browser does not skip.
DRAWN = """() => [...document.querySelectorAll(".chunk")].filter(
    (chunk) => chunk.firstChild.checkVisibility({ contentVisibilityAuto: true })).length"""
# Both panes begin with the same token, behind the first thousand.
FOLLOWED = """() => {
    const first = [...document.querySelectorAll(".tokens")].map((box) => [...box.children].findIndex(
        (chunk) => chunk.getBoundingClientRect().bottom > box.getBoundingClientRect().top + 2));
    return first[0] === first[1] && first[0] > 4;
}"""


@pytest.fixture(scope="module")
def address(shared_path: Path) -> str:
    """A report on disk whose runs kept outcomes, hostile texts, and responses of 16,384 tokens."""
    BROWSER.demand()
    request, ids = write_pair(shared_path)
    add_answers(request.uri, ids)
    return build_report(request).as_uri()


@pytest.fixture
def opened(browser: "Browser", address: str) -> "Iterator[Page]":
    """The page at desktop width, with the part on answers open."""
    for page in watched(browser, address):
        page.locator("#answers summary").click()
        yield page


def tip(page: "Page") -> str:
    return page.locator(".maps + p").inner_text()


def click_cell(page: "Page", method: int, row: int, step: int) -> None:
    """A cell of a map, from its place among 30 problems and 21 validations."""
    canvas = page.locator(".maps canvas").nth(method)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.click(position={"x": (step + 0.5) * box["width"] / 21, "y": (row + 0.5) * box["height"] / 30})


def choose(page: "Page", label: str, option: str) -> None:
    page.get_by_label(label, exact=True).last.select_option(label=option)


def shown_order(page: "Page") -> list[str]:
    options = page.get_by_label("Problem", exact=True).first.locator("option").all_text_contents()
    return [text.partition(". ")[2] for text in options]


def test_a_click_on_a_cell_shows_its_answers(opened: "Page") -> None:
    order = shown_order(opened)
    assert sorted(order) == sorted(IDS)
    row = order.index(IDS[0])
    click_cell(opened, 1, row, 20)
    right = sum(made_outcomes("cppo", seed).right[-1][0] for seed in (0, 1))
    assert tip(opened) == f"{IDS[0]}, CPPO, step {T_STOP}: {100 * right / 32 + 1e-9:.3g} % right"
    answers = opened.locator("#answers h3:has-text('Answers by step') ~ div .answer")
    assert answers.count() >= 2
    shows(answers.first, "cppo at step 200, draw 0: ")
    click_cell(opened, 0, row, 0)
    shows(answers.first, "dppo at step 0, draw 0: ")
    click_cell(opened, 0, order.index(IDS[5]), 0)
    assert opened.get_by_text("No answers to this problem are kept").is_visible()


def test_the_map_goes_by_keyboard(opened: "Page") -> None:
    opened.locator(".maps canvas").nth(1).focus()
    for key in ("ArrowDown", "ArrowLeft", "ArrowLeft"):
        opened.keyboard.press(key)
    order = shown_order(opened)  # of which the problem with kept answers is chosen at first
    assert tip(opened).startswith(f"{order[order.index(IDS[0]) + 1]}, CPPO, step {T_STOP - 20}: ")
    opened.keyboard.press("Enter")
    assert opened.locator(".maps ~ div select").first.is_visible()


def test_problems_that_one_method_alone_solves(opened: "Page") -> None:
    button = opened.locator(".names button")
    assert IDS[-1] in button.all_inner_texts()
    choose(opened, "Solved by", "DPPO")
    choose(opened, "and never by", "CPPO")
    assert opened.locator(".names").inner_text() == "None."
    choose(opened, "Solved by", "CPPO")
    choose(opened, "and never by", "DPPO")
    button.filter(has_text=IDS[-1]).click()
    assert tip(opened).startswith(f"{IDS[-1]}, CPPO, step {T_STOP}: 75 % right")


def test_a_training_group_with_rewards_and_advantages(opened: "Page") -> None:
    assert opened.locator(".rewards tbody tr").all_inner_texts() == [
        "1\twrong\t0\t-0.5\t4",
        "2\tright\t1\t0.5\t4",
        "3\twrong\t0\t-0.5\t4",
        "4\tright\t1\t0.5\t4",
    ]


def test_equal_answers_are_one_with_their_count(opened: "Page") -> None:
    choose(opened, "Problem", IDS[0])
    choose(opened, "Method", "DPPO")
    choose(opened, "Step", "100")
    shown = opened.locator("#answers [aria-live] > .answer > p")
    opened.wait_for_function(  # a busy machine lays the new answers out later
        "() => [...document.querySelectorAll('#answers [aria-live] > .answer > p')].every((p) => p.innerText)"
    )
    assert [text.partition(": ")[0] for text in shown.all_inner_texts()] == [
        "DPPO, seed 0, step 100, 2 equal answers (1, 3)",
        "DPPO, seed 0, step 100, answer 2",
    ]


def test_the_viewer_begins_where_cppo_drops_tokens(opened: "Page") -> None:
    chosen = opened.get_by_role("combobox", name="Response", exact=True)
    assert chosen.locator("option:checked").inner_text().startswith("CPPO, ")
    dropped = int((replay(made_tokens("cppo")).reason[:TOKENS] > 0).sum())
    assert dropped and pane(opened).locator("span.dropped").count() == dropped


def show_dppo(page: "Page") -> None:
    """The first response of the run that DPPO trained, under DPPO."""
    chosen = page.get_by_role("combobox", name="Response", exact=True)
    labels = chosen.locator("option").all_text_contents()
    chosen.select_option(label=next(label for label in labels if label.startswith("DPPO, ")))
    choose(page, "Rule", "DPPO")


def shows(place: "Locator", text: str) -> None:
    """Wait until the text is there: a page draws when its browser has time."""
    from playwright.sync_api import expect

    expect(place).to_contain_text(text, timeout=WAIT_MS)


def pane(page: "Page", number: int = 0) -> "Locator":
    return page.locator(".tokens").nth(number)


def test_tokens_under_two_rules_side_by_side(opened: "Page") -> None:
    recorded = made_tokens("dppo")
    rules = replay(recorded), replay(recorded, "cppo", CONSTANTS["cppo"])
    dppo, cppo = (rule.reason[:TOKENS] > 0 for rule in rules)
    (dropped,), (different,), (either,) = map(np.nonzero, (dppo, dppo != cppo, dppo | cppo))
    facts = opened.locator(".token-facts")
    show_dppo(opened)
    assert pane(opened).locator("span").count() == TOKENS
    assert pane(opened).locator("span.dropped").count() == len(dropped) > 0
    opened.get_by_role("button", name="Next dropped").click()
    shows(facts, f"token {dropped[0] + 1} of {TOKENS}")
    shows(facts, f"DPPO: dropped by {rules[0].tests[rules[0].reason[dropped[0]] - 1]}")
    choose(opened, "beside", "CPPO")
    assert pane(opened, 1).locator("span.dropped").count() == cppo.sum()
    assert pane(opened, 1).locator("span.differs").count() == len(different)
    pane(opened).focus()
    for keys, place in ((("Home", "d"), different[different > 0][0]), (("End", "p"), either[-1])):
        for key in keys:
            opened.keyboard.press(key)
        shows(facts, f"token {place + 1} of {TOKENS}")
    shows(facts, "w (CPPO)")


def test_each_jump_ends_at_the_chosen_token(opened: "Page") -> None:
    """At once and for good, in both panes, over chunks that were never laid out and have estimated heights."""

    def assert_seen(after: object) -> None:
        assert opened.evaluate(BOTH_SEEN), after
        opened.evaluate(FRAMES)
        assert opened.evaluate(BOTH_SEEN), after

    show_dppo(opened)
    choose(opened, "beside", "CPPO")
    pane(opened).focus()
    for key, number in (("End", TOKENS), ("Home", 1), ("d", None), ("p", None), ("End", TOKENS)):
        opened.keyboard.press(key)
        assert_seen(key)
        if number is not None:
            shows(opened.locator(".token-facts"), f"token {number} of {TOKENS}")
    strip = opened.locator(".strip")
    box = strip.bounding_box()
    for share in (0.5, 0.1, 0.99):
        strip.click(position={"x": share * box["width"], "y": box["height"] / 2})
        assert_seen(share)
    choose(opened, "Rule", "CPPO")
    for height in (500, 1000, 360):  # new panes show what the facts beside them are of
        opened.evaluate(FRAMES)
        assert opened.evaluate(BOTH_SEEN), height
        opened.set_viewport_size({"width": 1280, "height": height})


def test_colours_are_of_the_chosen_quantity(opened: "Page") -> None:
    tokens = made_tokens("dppo")
    ratio = (tokens.logp - tokens.rollout_logp)[:200]
    show_dppo(opened)
    choose(opened, "Colour by", "log-ratio, log π − log μ")
    for place, colour in ((ratio.argmax(), "--hot"), (ratio.argmin(), "--cold")):
        assert colour in pane(opened).locator("span").nth(int(place)).get_attribute("style")
    choose(opened, "Colour by", "position weight w_t")
    assert "This rule has no position weight w_t" in opened.locator(".pane").inner_text()
    choose(opened, "Colour by", "kept or dropped")
    tinted = "[...document.querySelectorAll('.tokens span')].filter(s => s.style.cssText).length"
    assert opened.evaluate(tinted) == pane(opened).locator("span.dropped").count()
    # Chunks off the screen are skipped by the browser: what makes 16,384 tokens scroll.
    assert opened.locator(".chunk").count() == TOKENS / 256
    pane(opened).scroll_into_view_if_needed()
    opened.wait_for_function(f"() => ({DRAWN})() > 0")
    assert opened.evaluate(DRAWN) <= 12


def test_the_other_pane_follows(opened: "Page") -> None:
    choose(opened, "beside", "CPPO")
    for number in (0, 1):
        pane(opened, number).evaluate("box => { box.scrollTop = box.scrollHeight / 2; }")
        opened.wait_for_function(FOLLOWED)
        pane(opened).focus()
        opened.keyboard.press("Home")
        opened.wait_for_function(BOTH_SEEN)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(opened: "Page", scheme: str) -> None:
    choose_scheme(opened, scheme)
    choose(opened, "beside", "CPPO")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    first, second = (pane(opened, number).bounding_box() for number in (0, 1))
    assert second["y"] >= first["y"] + first["height"]  # below it
    for selector in (
        *(".maps + p", ".answers .text", ".token-facts", ".grade.wrong", ".grade.right", ".chunk span"),
    ):
        assert contrast(opened, selector) >= 4.5, selector


def test_without_scripts_it_says_so(browser: "Browser", address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(address)
    assert page.locator("#figure_curves svg").is_visible()
    page.locator("#answers summary").click()  # the browser's own: it needs no script
    assert page.locator("#answers .unscripted").is_visible()
    page.emulate_media(media="print")
    assert page.locator("#answers .unscripted").is_visible() and page.locator(".answers").is_hidden()
    context.close()
