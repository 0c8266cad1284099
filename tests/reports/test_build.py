"""Building a report: what is written, when nothing is, and that the same runs give the same bytes."""

import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.reports import build, sweep
from cppo_lab.reports.build import ZIP, build_report
from cppo_lab.reports.saved import MARKER
from cppo_lab.reports.sweep import ReportRequest, paper_request
from tests.analysis.made_sweeps import scored, write_runs
from tests.reports.conftest import DEMO_RUNS, page_of, request_in, svg_alone

ALWAYS = {"table_long.csv", "runs.csv", "report.json", "numbers.tex", "methods.md", "methods.tex"}
ALWAYS |= {"index.html", "tables.tex", ZIP, MARKER}
TABLES = ("table_main", "table_full", "verdicts", "statistics_scores", "statistics_order", "collapses")


def named(stems: Iterable[str], kinds: str) -> set[str]:
    return {f"{stem}.{kind}" for stem in stems for kind in kinds.split()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def built(demo_store: Path, shared_path: Path) -> ReportRequest:
    """The request of a report that stands. Do not write to it."""
    request = request_in(shared_path, demo_store)
    assert build_report(request) == request.out / "index.html"
    return request


def assert_self_contained(folder: Path) -> str:
    """The page: its ids are unique, and it loads nothing but the files beside it, each of which is a link."""
    html = (folder / "index.html").read_text()
    counted = Counter(re.findall(r'\bid="([^"]+)"', html))
    assert max(counted.values()) == 1
    drawn = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    loaded = {*map("".join, re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', drawn))}
    files = {path.name for path in folder.iterdir()} - {MARKER, "index.html"}
    assert files <= loaded <= {f"#{name}" for name in counted} | files
    assert re.search(r"<(link|iframe|img|object)\b", html) is None
    return html


def test_a_report_of_our_own_sweep(built: ReportRequest) -> None:
    files = contents(built.out)
    figures = named(("figure_curves", "figure_diagnostics"), "png svg pdf csv")
    assert set(files) == ALWAYS | figures | named((*TABLES, "statistics_differences"), "md tex csv")
    assert "51.00 (50.00 to 52.00) |" in files["statistics_scores.md"].decode()  # the range of two seeds
    assert files["table_full.csv"].decode() == (
        "model,t_stop,method,chain24,chain25,chain26,avg,core\n"
        "mini_base,40,grpo,30.00,31.00,32.00,31.00,mini\n"
        "mini_base,40,cppo,50.00,51.00,52.00,51.00,mini\n"
    )
    html = assert_self_contained(built.out)
    for text in (
        "CPPO scores 51.00, 20.00 points above GRPO (31.00)",
        "over 2 and 2 seeds their standard deviations are 1.41 and 1.41",
        "core=mini: a miniature model on a synthetic task, not comparable",
        "51.00 ± 1.41",
        "Avg@8",
        "cppo report demo",
        "Step: where each run was selected; of a collapse, its last validation.",
        "Means over neighbouring steps and over the runs that reach them.",
        "Bands: the range of two seeds. Source: core=mini",
    ):
        assert text in html
    assert "Audit" not in html
    assert html.count("<script") == 1 + 2  # the page's own, and the values of the curves of each figure
    for name in figures - {"figure_curves.csv", "figure_diagnostics.csv"}:  # these have numbers alone
        assert b"made by: cppo report demo" in files[name]
        assert b"cppo-0 cppo-1 grpo-0 grpo-1" in files[name]


def test_the_part_of_a_further_figure_is_in_the_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    section = sweep.figure_section("steps", SimpleNamespace(title="Best <steps>"), Mock(), "Steps.")
    monkeypatch.setattr("cppo_lab.reports.sweep.mismatch_section", lambda _scored: section)
    html = page_of(scored(DEMO_RUNS))[1]
    listed = re.findall(r'<li><a href="#(\w+)">(.*?)</a>', html.partition("</nav>")[0])
    assert ("figure_steps_part", "Best &lt;steps&gt;") in listed
    assert [name for name, _ in listed] == re.findall(r'<section id="(\w+)"', html)


def test_the_zip_is_a_latex_project(built: ReportRequest) -> None:
    with zipfile.ZipFile(built.out / ZIP) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    main = files["main.tex"].decode()
    inputs = {f"{name}.tex" for name in re.findall(r"\\input\{(\w+)\}", main)}
    shown = set(re.findall(r"\\includegraphics\[.*?\]\{(\w+\.pdf)\}", main))
    assert {"table_main.tex", "table_full.tex", "numbers.tex", "methods.tex"} <= inputs <= set(files)
    assert shown == {"figure_curves.pdf", "figure_diagnostics.pdf"}
    assert all(files[name] == (built.out / name).read_bytes() for name in (*inputs, *shown, "methods.md"))
    assert b"Sweep demo has 2 methods (GRPO, CPPO) on 1 model (mini\\_base)" in files["methods.md"]
    assert b"\\newcommand{\\cppoDemoMiniBaseCppoBest}{51.00} %" in files["numbers.tex"]
    assert main.rstrip().endswith(r"\end{document}")


def test_another_palette_changes_the_figures_alone(built: ReportRequest, tmp_path: Path) -> None:
    usual, other = contents(built.out), replace(built, out=tmp_path / "other", palette="colorblind")
    other.out.mkdir()  # an empty folder may be filled
    with svg_alone():
        build_report(other)
    changed = {name for name, data in contents(other.out).items() if data != usual[name]}
    figures = {name for name in usual if name.startswith("figure_") and not name.endswith(".csv")}
    assert changed == {"index.html", "report.json", ZIP, *figures}
    svg = (other.out / "figure_curves.svg").read_text().lower()
    assert "#0072b2" in svg and "#0052d9" not in svg


@pytest.mark.parametrize(
    "owner, name",
    [(MlflowClient, "search_runs"), (build, "render_template"), (Path, "write_bytes"), (Path, "rename")],
)
def test_an_interrupted_build_leaves_the_old_report(
    demo_request: ReportRequest, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, undrawn: None
) -> None:
    build_report(demo_request)
    folder, before, rename = demo_request.out.parent, contents(demo_request.out), Path.rename
    beside, full = set(folder.iterdir()), [OSError("disk full")]

    def interrupted(path: Any, *more: Any, **_: Any) -> Path:
        if name != "rename":
            raise KeyboardInterrupt
        if more == (demo_request.out,) and full:
            raise full.pop()
        return rename(path, *more)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupted)
        with pytest.raises((KeyboardInterrupt, OSError)):
            build_report(demo_request)
    assert contents(demo_request.out) == before and set(folder.iterdir()) == beside
    build_report(demo_request)


def test_the_paper_report(reference_uri: str, tmp_path: Path) -> None:
    request = paper_request(reference_uri, tmp_path / "deep" / "main")
    with svg_alone():
        files = contents(build_report(request).parent)
    figures = named(("figure_4", "figure_curves", "figure_diagnostics", "figure_survival"), "png svg pdf csv")
    tables = named((*TABLES, "collapse_steps", "audit"), "md tex csv")
    assert set(files) == ALWAYS | figures | tables
    html = assert_self_contained(request.out)
    assert "the paper&#39;s own curves (arXiv 2606.10968), not trained here" in html
    assert "CPPO has the highest score on 4 of 4 models" in html
    assert "CISPO collapses: its best is 49.51 at step 145" in html
    assert html.count("not seen in these curves") == 2
    assert len(set(re.findall(r"<code>(paper-Qwen3[^<]+)</code>", html))) == 28
    assert html.count("<svg") == 3  # curves, diagnostics, a collapse
    assert b"core" not in files["table_main.csv"]
    assert len(files["audit.csv"].splitlines()) == 1 + 28 * 4


def test_equal_runs_give_equal_bytes_in_whatever_order_they_came(
    built: ReportRequest, tmp_path: Path
) -> None:
    """In another process, too. Only MLflow's ids differ, in the list of runs and the page: not in the other files.

    The figures alone import matplotlib, and nothing pyplot.
    """
    other = replace(built, out=tmp_path / "report", uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    MlflowClient(other.uri).create_experiment("another")  # so that the numbers of experiments differ too
    runs = [
        replace(
            run, logged={name: dict(reversed(curve.items())) for name, curve in reversed(run.logged.items())}
        )
        for run in reversed(DEMO_RUNS)
    ]
    write_runs(other.uri, runs, "demo")
    code = (
        "import pickle, sys, cppo_lab.analysis.scoring, cppo_lab.reports.tables;"
        "assert 'matplotlib' not in sys.modules; from cppo_lab.reports.build import build_report;"
        "build_report(pickle.loads(sys.stdin.buffer.read()));"
        "bad = {'matplotlib.pyplot', 'torch', 'hydra', 'submitit', 'cppo_lab.sweep'} & set(sys.modules);"
        "assert not bad, bad"
    )
    environment = dict(os.environ, PYTHONHASHSEED="7")
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(other), check=True, env=environment)
    first, second = (contents(request.out) for request in (built, other))
    texts = []
    for request, files in ((built, first), (other, second)):
        text, record = files.pop("runs.csv") + files.pop("index.html"), json.loads(files.pop("report.json"))
        client = MlflowClient(request.uri)
        for run in client.search_runs([client.get_experiment_by_name(request.experiment).experiment_id]):
            text = text.replace(run.info.run_id.encode(), run.data.tags[schema.TAG_RUN_ID].encode())
        for name in ("index.html", "runs.csv"):  # the record has their fingerprints
            del record["files"][name]
        texts.append((re.sub(rb"#/experiments/\d+/", b"#/experiments/N/", text), record))
    assert first == second and texts[0] == texts[1]
