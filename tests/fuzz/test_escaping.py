"""A store written by a stranger: whatever stands in it is text on pages, in drawings, tables and descriptions."""

import csv
import io
import itertools
import re
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import Param, RunTag

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun, SweepGrid
from cppo_lab.reports.build import build_report
from cppo_lab.reports.names import csv_cell, escape_latex, escape_markdown
from cppo_lab.reports.sections import mlflow_link, mlflow_path
from cppo_lab.runs.tags import code, escaped
from cppo_lab.tracking.page import ReportLog, SweepText, sweep_note, verdict_markdown
from tests.fuzz.mangling import fuzz
from tests.reports.conftest import DEMO, demo_store, request_in, svg_alone

__all__ = ["demo_store"]  # fixtures

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' onmouseover='alert(3)",
    "[click](javascript:alert(4))",
    "{{ 7 * 191 }}{% raw %}",
    "<!--<svg/onload=alert(5)>",
    "&lt;b&gt;\u2028\u202e</title><iframe src=//evil.example>",
    '=HYPERLINK("http://evil.example","x")',
    "\\input{/etc/passwd}$\\write18{id}$%",
)
ALL = " ".join(HOSTILE)
# Elements of our page; SVG's are those that matplotlib draws with.
ELEMENTS = re.compile(
    "html|head|meta|title|style|body|header|main|section|p|h[1-4]|strong|em|span|div|table|caption|thead|tbody|tr|th|td|ul|ol|"
    "li|dl|dt|dd|a|button|details|summary|figure|figcaption|pre|code|script|label|input|noscript|nav|footer|svg|defs|g|path|"
    "use|rect|clippath|text|tspan|metadata|rdf:rdf|cc:work|dc:type|dc:format|select|option|output|u|line|circle"
)
DRAWN = re.compile(
    f"{ELEMENTS.pattern}|image|rdf|work|type|format|creator|agent|keywords|bag|subject|description|date|source"
)
NUMBER = re.compile(r"[+-]\d[\d.]*(e[+-]?\d+)?( ± [\d.]+| \([+−]?[\d.]+ to [+−]?[\d.]+\))?†?")


class Page(HTMLParser):
    """What a browser would make of a page: its elements, scripts and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def report(shared_path: Path, demo_store: Path) -> Path:
    """The folder of a report on a store with hostile names, tags, parameters and errors, which come through MLflow; and
    metrics' names, which it would refuse, in its tables.
    """
    request = request_in(shared_path, demo_store)
    client = MlflowClient(request.uri)
    names = (schema.TAG_REASON, schema.TAG_CODE_VERSION, schema.TAG_NOTE, schema.TAG_HOST, "mlflow.runName")
    demo = schema.sweep_tag("demo")
    for number, run in enumerate(client.search_runs(["1"])):
        tags = dict.fromkeys(names, ALL) | {demo: run.data.tags[demo] + ALL, schema.TAG_MODEL: "m" + ALL}
        tags[schema.TAG_RULE] = HOSTILE[number % len(HOSTILE)]
        if not number:
            tags[schema.TAG_STATUS] = schema.COLLAPSED
        params = [Param("model.name", ALL[:500]), Param("rule.delta", HOSTILE[0])]
        client.log_batch(run.info.run_id, params=params, tags=list(itertools.starmap(RunTag, tags.items())))
    database = sqlite3.connect(shared_path / "mlflow.db")
    for table in ("metrics", "latest_metrics"):
        for names in ((HOSTILE[1].replace("/", ""), "chain26"), ("=1+1", "chain25")):
            keys = [schema.validation_metric(name, 8) for name in names]
            database.execute(f"UPDATE {table} SET key = ? WHERE key = ?", keys)
    database.execute("UPDATE runs SET name = ?", (ALL,))
    database.commit()
    database.close()
    expected = tuple(
        ExpectedRun(f"{name}-{seed}", "m" + ALL, name + ALL, seed) for name in DEMO for seed in (0, 1)
    )
    said = {"title": ALL, "question": ALL, "command": f"cppo report {ALL}"}
    declared = (*expected, replace(expected[0], run_id="not-there", seed=7))
    request = replace(request, sweeps=(SweepGrid("demo", ALL, ALL, declared),), partial=True, **said)
    with svg_alone():
        return build_report(request).parent


def test_the_page_has_no_live_script_but_its_own(report: Path) -> None:
    page = Page((report / "index.html").read_text())
    assert [name for name in page.elements if not ELEMENTS.fullmatch(name)] == []
    figures = len(list(report.glob("figure_*.svg")))  # the values of the curves of each
    assert page.elements["script"] == 1 + figures
    assert page.attributes.count(("script", "type", "application/json")) == figures
    live = [name for _, name, _ in page.attributes if re.match("on|srcdoc$|formaction$|action$", name)]
    assert live == []
    addresses = [value for _, name, value in page.attributes if name in ("href", "src", "xlink:href", "data")]
    assert addresses
    data = {path.name for path in report.glob("figure_*.csv")}  # names of ours alone
    assert data == {"figure_curves.csv", "figure_diagnostics.csv", "figure_survival.csv"}
    own = {path.name for path in report.iterdir()}  # the page links to every file beside it
    assert all(value.startswith("#") or value in own for value in addresses)
    [policy] = [value for *_, value in page.attributes if value.startswith("default-src")]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy and re.search(r"script-src 'sha256-[A-Za-z0-9+/=]+'(;|$)", policy)
    assert str(7 * 191) not in page.text  # no template of a stranger's is filled in
    for hostile in HOSTILE[:4]:
        assert hostile in page.text  # shown as it stands


def test_drawings_are_drawings(report: Path) -> None:
    drawings = list(report.glob("*.svg"))
    assert drawings
    for path in drawings:
        root = ElementTree.fromstring(path.read_bytes())
        for element in root.iter():
            name = element.tag.rpartition("}")[2].lower()
            assert DRAWN.fullmatch(name), (path, name)
            for key, value in element.attrib.items():
                key = key.rpartition("}")[2].lower()
                assert not key.startswith("on")
                assert key != "href" or value.startswith(("#", "data:image/png;base64,"))


def test_tables_hold_no_formula(report: Path) -> None:
    files = list(report.glob("*.csv"))
    assert files
    for path in files:
        for row in csv.reader(io.StringIO(path.read_text(), newline="")):
            for cell in row:
                assert NUMBER.fullmatch(cell) or not cell.startswith(("=", "+", "-", "@", "\t")), (path, cell)


def test_latex_and_markdown_hold_no_command(report: Path) -> None:
    tex, markdown = (list(report.glob(f"*.{kind}")) for kind in ("tex", "md"))
    assert tex and markdown
    for path in tex:
        text = path.read_text()
        own = {f"\\input{{{name.stem}}}" for name in [*report.glob("table_*.tex"), report / "numbers.tex"]}
        assert set(re.findall(r"\\input\{[^}]*\}", text)) <= own
        assert "\\write18" not in text
        assert text.isascii()
    for path in markdown:
        text = path.read_text()
        assert not re.search(r"<(?!/?u>)[a-zA-Z!/]", text), path
        assert not re.search(r"(?<!\\)\]\(", text), path


def test_nothing_was_written_elsewhere(report: Path) -> None:
    beside = {path.name for path in report.parent.iterdir() if not path.name.startswith("mlflow.db-")}
    assert beside == {"mlflow.db", "report"}
    assert all(path.is_file() and path.parent == report for path in report.rglob("*"))


NOISE = st.text(max_size=30) | st.sampled_from(HOSTILE)


def live(markdown: str) -> list[str]:
    """What begins HTML, a link or an image in Markdown that is not escaped."""
    return re.findall(r"<[a-zA-Z!/?]|\]\(\s*(?!#|/)[^)]*|javascript:|!\[", markdown)


@fuzz(150)
@given(text=NOISE)
@example(text=ALL)
@example(text="www.evil.example <a@b.c> ftp://x http&#58;//y")
def test_words_in_descriptions(text: str) -> None:
    for shown in (escaped(text), code(text)):
        assert len(shown.splitlines()) <= 1
        inside = re.sub(r"`[^`]*`", "", shown)
        assert not re.search(r"[<>\[\]`*_|]", inside)
        assert "://" not in inside


@fuzz(40)
@given(words=st.lists(NOISE, min_size=7, max_size=7))
@example(words=[ALL] * 7)
@example(words=["`" + HOSTILE[0], "|" + HOSTILE[3], *HOSTILE[:5]])
def test_descriptions(words: list[str]) -> None:
    title, question, feed, origin, *verdict = words
    sweep = SweepText("demo", title, question, (feed,))
    log = ReportLog(sweep, Path(), {}, ((verdict[0], verdict[1], verdict[2]),), origin)
    note = sweep_note(sweep, [schema.DONE, schema.MISSING], verdict_markdown(log, "p"))
    assert live(re.sub(r"`[^`\n]*`", "", note)) == []


@fuzz(200)
@given(text=NOISE)
def test_latex_is_ascii_without_commands(text: str) -> None:
    shown = escape_latex(text)
    assert shown.isascii()
    assert "\n" not in shown
    assert not re.search(r"\\(input|include|write|openin|def|csname|catcode|immediate|read)(?![a-z])", shown)
    assert "\n" not in escape_markdown(text)
    assert not re.search(r"<[a-zA-Z!/]", escape_markdown(text))


@fuzz(150)
@given(
    text=st.text(max_size=12)
    | st.sampled_from(["=1", "+1+1", "-1-cmd|' /C calc'!A0", "@SUM(1)", "\t=1", "\r=1", "-5", "\n=1", "＝1"])
)
def test_cells_of_csv(text: str) -> None:
    cell = csv_cell(text)
    if cell.startswith(tuple("=+-@\t\r\n＝＋－＠")):
        assert NUMBER.fullmatch(cell)


@pytest.mark.parametrize(
    "uri, link",
    {
        "javascript:alert(1)//http://x": "",
        "http://ada:s3cret@host:5000/": "http://host:5000/#/experiments/1%22/runs/a%22b?workflowType=machine_learning",
        "https://user:s3cret@host:5000/mlflow/?x=1": "https://host:5000/mlflow/#/experiments/1%22/runs/a%22b?workflowType=machine_learning",
        "postgresql://u:s3cret@host/db": "",
        "sqlite:////x.db": "",
    }.items(),
)
def test_links_to_runs(uri: str, link: str) -> None:
    assert mlflow_link(uri, mlflow_path('1"', 'a"b')) == link
