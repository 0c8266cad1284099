"""What a researcher sees: the saved view, a filter, two methods in one comparison, the sweep's description."""

import re
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.reports.sections import mlflow_link, mlflow_path
from cppo_lab.rules import METHOD_COLOURS
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.page import ensure_parent
from cppo_lab.tracking.upload import TABLE
from tests.browser.conftest import WAIT_MS
from tests.jobs import planned
from tests.plausible import HOSTILE_ANSWER, LAST_STEP, score
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

MEAN = schema.validation_metric(schema.MEAN)
STEPS = list(range(0, LAST_STEP + 1, 4))


def specs() -> list[RunSpec]:
    """The runs that the store has."""
    return [run.spec for run in planned("quickstart").runs]


def ids_of(store: str, spec: RunSpec) -> tuple[str, str]:
    """MLflow's of the experiment and of a run."""
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("cppo-mini").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`{schema.TAG_RUN_ID}` = '{spec.run_id}'")
    return experiment, run.info.run_id


def drawn(card: "Locator") -> dict[tuple[float, ...], set[str]]:
    """The values of each curve that a chart has drawn at STEPS, as Plotly has them, and its opaque colours."""
    traces = card.locator(".js-plotly-plot").evaluate(
        "plot => plot.data.map(({x, y, marker}) => [[...(x || [])], [...(y || [])], marker?.color])"
    )
    colours: dict[tuple[float, ...], set[str]] = defaultdict(set)
    for x, y, colour in traces:
        if x == STEPS:
            opaque = re.findall("^#.{6}$", str(colour))
            colours[tuple(round(value, 6) for value in y)] |= {*map(str.upper, opaque)}
    return colours


def test_the_link_opens_a_view_with_charts(browser_page: "Page", links: list[str]) -> None:
    browser_page.goto(links[0])
    card = browser_page.get_by_test_id("experiment-view-compare-runs-card").filter(has_text=MEAN).first
    card.locator("path.js-line").first.wait_for(state="attached")
    expected = {
        tuple(round(score(spec, step), 6) for step in STEPS): {METHOD_COLOURS[spec.rule.name].upper()}
        for spec in specs()
    }
    until("all curves are drawn", lambda: expected.keys() <= drawn(card).keys())
    assert expected.items() <= drawn(card).items()
    titles = browser_page.get_by_test_id("experiment-view-compare-runs-section-header").all_inner_texts()
    assert titles[0].splitlines()[0] == "Validation"


def test_the_columns_of_the_view(browser_page: "Page", links: list[str]) -> None:
    from playwright.sync_api import expect

    browser_page.goto(links[0].replace("compareRunsMode=CHART", "compareRunsMode=TABLE"))
    browser_page.get_by_role("columnheader", name=schema.TAG_RULE).first.wait_for()
    heads = browser_page.get_by_role("columnheader").all_inner_texts()
    tags = {schema.TAG_STATUS, schema.TAG_RULE, schema.TAG_MODEL, schema.TAG_SEED}
    assert tags | {MEAN, "train/reward"} <= {*heads}
    expect(browser_page.locator("[role=row] a[href*='/runs/']")).to_have_count(6, timeout=WAIT_MS)


def test_the_descriptions_are_rendered(browser_page: "Page", store: str, links: list[str]) -> None:
    page, client = browser_page, MlflowClient(store)
    experiment = client.get_experiment_by_name("cppo-mini").experiment_id
    parent = ensure_parent(client, experiment, "quickstart")
    page.goto(mlflow_link(urljoin(links[0], "/"), mlflow_path(experiment, parent)))
    page.get_by_role("heading", name="Quickstart", exact=True).wait_for()
    page.get_by_text("Does a trust region on the divergence learn more").wait_for()
    page.get_by_text("runs: 6 (6 done)").wait_for()
    page.goto(links[0])
    page.get_by_text("Runs of the embedded core").first.wait_for()


def test_the_link_of_a_report_opens_the_run(browser_page: "Page", store: str, links: list[str]) -> None:
    page, spec = browser_page, specs()[-1]
    experiment, mlflow_id = ids_of(store, spec)
    page.goto(mlflow_link(urljoin(links[0], "/"), mlflow_path(experiment, mlflow_id)))
    page.get_by_text(spec.run_id).first.wait_for()
    page.locator("nav").get_by_text("Model registry").first.wait_for()
    # Of MLflow's pages for language models.
    assert page.locator("nav").get_by_text("Evaluation runs").count() == 0


def test_the_answers_of_a_run_are_a_table(browser_page: "Page", store: str, links: list[str]) -> None:
    """Hostile text is shown as text."""
    page, spec = browser_page, specs()[-1]
    experiment, mlflow_id = ids_of(store, spec)
    page.on("dialog", lambda dialog: pytest.fail(f"the text was run: {dialog.message}"))
    page.goto(urljoin(links[0], f"/#/experiments/{experiment}/runs/{mlflow_id}/artifacts/{TABLE}"))
    page.get_by_text(HOSTILE_ANSWER).first.wait_for()
    page.get_by_text(f"{spec.rule.name} at step {LAST_STEP}").first.wait_for()
