"""Building a report: what is written, when nothing is, and that the same runs give the same bytes."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.errors import UserError
from cppo_lab.reports import build, sweep
from cppo_lab.reports.build import ZIP, build_report
from cppo_lab.reports.saved import MARKER
from cppo_lab.reports.sections import Section
from cppo_lab.reports.sweep import ReportRequest, paper_request

TABLES = {f"table_{name}.{kind}" for name in ("main", "full") for kind in ("md", "tex", "csv")}
VERDICTS = {f"verdicts.{kind}" for kind in ("md", "tex", "csv")}
STATISTICS = VERDICTS | {
    f"statistics_{name}.{kind}" for name in ("scores", "order") for kind in ("md", "tex", "csv")
}
DIFFERENCES = {f"statistics_differences.{kind}" for kind in ("md", "tex", "csv")}  # of several seeds
STATISTICS |= {f"collapses.{kind}" for kind in ("md", "tex", "csv")}
TABLES |= {"table_long.csv", "runs.csv", "report.json", "numbers.tex", "methods.md", "methods.tex"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_report_of_our_own_sweep(demo_request: ReportRequest) -> None:
    page = build_report(demo_request)
    assert page == demo_request.out / "index.html"
    files = contents(demo_request.out)
    figures = {
        f"figure_{name}.{kind}" for name in ("curves", "diagnostics") for kind in ("png", "svg", "pdf", "csv")
    }
    assert set(files) == TABLES | STATISTICS | DIFFERENCES | figures | {
        "index.html",
        "tables.tex",
        ZIP,
        MARKER,
    }
    assert "51.00 (50.0 to 52.0) |" in files["statistics_scores.md"].decode()  # the range of two seeds
    assert (
        files["table_full.csv"].decode().splitlines()[0]
        == "model,t_stop,method,chain24,chain25,chain26,avg,core"
    )
    assert (
        files["table_full.csv"].decode().splitlines()[2] == "mini_base,40,cppo,50.00,51.00,52.00,51.00,mini"
    )
    html = files["index.html"].decode()
    assert "CPPO scores 51.00, 20.00 points above GRPO (31.00)" in html
    assert "over 2 and 2 seeds their standard deviations are 1.41 and 1.41" in html
    assert "core=mini: a miniature model on a synthetic task, not comparable" in html
    assert "51.00 ± 1.41" in html
    assert "Avg@8" in html
    assert "cppo report demo" in html
    assert "Audit" not in html
    assert [path.name for path in demo_request.out.parent.iterdir() if path.name.startswith(".report")] == []


def test_figures_name_their_command_and_runs(demo_request: ReportRequest) -> None:
    build_report(demo_request)
    for path in demo_request.out.glob("figure_*.[ps]*"):  # the CSV has numbers alone
        if path.suffix == ".pdf":  # a name without accents stands in a PDF as it is
            assert b"/Subject (made by: cppo report demo)" in path.read_bytes()
        else:
            assert b"made by: cppo report demo" in path.read_bytes()
        assert b"cppo-0 cppo-1 grpo-0 grpo-1" in path.read_bytes()


def test_another_palette_changes_the_figures_alone(demo_request: ReportRequest, tmp_path: Path) -> None:
    build_report(demo_request)
    usual = contents(demo_request.out)
    other = replace(demo_request, out=tmp_path / "other", palette="colorblind")
    build_report(other)
    changed = {name for name, data in contents(other.out).items() if data != usual[name]}
    figures = {name for name in usual if name.startswith("figure_") and not name.endswith(".csv")}
    assert changed == {"index.html", "report.json", ZIP, *figures}
    svg = (other.out / "figure_curves.svg").read_text().lower()
    assert "#0072b2" in svg
    assert "#0052d9" not in svg


def test_the_page_is_self_contained_and_its_ids_are_unique(demo_request: ReportRequest) -> None:
    html = build_report(demo_request).read_text(encoding="utf-8")
    counted = Counter(re.findall(r'\bid="([^"]+)"', html))
    assert [name for name, count in counted.items() if count > 1] == []
    drawn = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    loaded = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', drawn)
    files = {path.name for path in demo_request.out.iterdir()} - {MARKER, "index.html"}
    assert {first or second for first, second in loaded} <= {f"#{name}" for name in counted} | files
    assert files <= {first for first, _ in loaded}  # every file beside the page is a link
    assert html.count("<script") == 1 + 2  # the page's own, and the values of the curves of each figure
    assert re.search(r"<(link|iframe|img|object)\b", html) is None


def test_a_figure_and_its_part_cost_one_line(
    demo_request: ReportRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more(report: sweep.SweepReport) -> Section:
        [curves] = sweep._curves(report).pictures
        return sweep.figure_section("more", replace(curves.info, title="One more"), curves.draw)

    monkeypatch.setattr(sweep, "SWEEP", (*sweep.SWEEP, more))
    html = build_report(demo_request).read_text(encoding="utf-8")
    assert html.count('<section id="figure_more_part">') == 1
    assert html.count('<figure class="card wide" id="figure_more">') == 1
    assert html.count('<figure class="card wide" id="figure_curves">') == 1


def test_hostile_names_are_text_on_the_page(demo_request: ReportRequest) -> None:
    hostile = "<script>alert(1)</script>"
    client = MlflowClient(demo_request.uri)
    for run in client.search_runs(["1"]):
        client.set_tag(run.info.run_id, schema.TAG_REASON, hostile)
    expected = tuple(
        replace(entry, model=f"m{hostile}", variant=f"{entry.variant}{hostile}")
        for entry in demo_request.expected
    )
    request = replace(
        demo_request, title=f"T {hostile}", question=hostile, command=hostile, expected=expected
    )
    html = build_report(request).read_text(encoding="utf-8")
    assert html.count("<script") == 1 + 2
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;") > 10


def test_the_same_runs_give_the_same_bytes_in_another_process(demo_request: ReportRequest) -> None:
    build_report(demo_request)
    first = contents(demo_request.out)
    build_report(demo_request)
    assert contents(demo_request.out) == first
    code = (
        "import pickle, sys; from cppo_lab.reports.build import build_report;"
        "build_report(pickle.loads(sys.stdin.buffer.read()))"
    )
    environment = dict(os.environ, PYTHONHASHSEED="7")
    subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(demo_request), check=True, env=environment
    )
    assert contents(demo_request.out) == first


def test_an_incomplete_grid_is_refused_and_nothing_written(demo_request: ReportRequest) -> None:
    more = ExpectedRun("cppo-2", "mini_base", "cppo", 2)
    request = replace(demo_request, expected=(*demo_request.expected, more))
    before = set(demo_request.out.parent.iterdir())
    with pytest.raises(
        UserError,
        match=r"cppo on mini_base, seed 2 \(missing\).*`cppo launch` with the same sweep.*--partial",
    ):
        build_report(request)
    assert set(demo_request.out.parent.iterdir()) == before

    html = build_report(replace(request, partial=True)).read_text(encoding="utf-8")
    assert "cppo on mini_base, seed 2 (missing)" in html
    assert "51.00 ± 1.41†" in html


def test_a_refused_build_leaves_the_old_report(demo_request: ReportRequest) -> None:
    build_report(demo_request)
    before = contents(demo_request.out)
    client = MlflowClient(demo_request.uri)
    run = client.search_runs(["1"])[0]
    client.set_tag(run.info.run_id, schema.TAG_STATUS, schema.RUNNING)
    with pytest.raises(UserError, match=r"\(running\)"):
        build_report(demo_request)
    assert contents(demo_request.out) == before


@pytest.mark.parametrize("moment", ["drawing", "writing", "swapping"])
def test_an_interrupted_build_leaves_the_old_report(
    demo_request: ReportRequest, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    build_report(demo_request)
    before = contents(demo_request.out)
    beside = set(demo_request.out.parent.iterdir())
    with monkeypatch.context() as patched:
        if moment == "drawing":
            patched.setattr(build, "render_template", interrupted)
        elif moment == "writing":
            patched.setattr(Path, "write_bytes", interrupted)
        else:
            real = Path.rename

            def rename(path: Path, target: Path) -> Path:
                if ".new-" in path.name:
                    raise OSError("disk full")
                return real(path, target)

            patched.setattr(Path, "rename", rename)
        with pytest.raises((KeyboardInterrupt, OSError)):
            build_report(demo_request)
    assert contents(demo_request.out) == before
    assert set(demo_request.out.parent.iterdir()) == beside
    build_report(demo_request)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_empty_folder_may_be_filled(demo_request: ReportRequest) -> None:
    demo_request.out.mkdir()
    assert build_report(demo_request).is_file()


def test_the_paper_report(reference_uri: str, tmp_path: Path) -> None:
    request = paper_request(reference_uri, tmp_path / "deep" / "main")
    files = contents(build_report(request).parent)
    figures = {
        f"figure_{name}.{kind}"
        for name in ("4", "curves", "diagnostics", "survival")
        for kind in ("png", "svg", "pdf", "csv")
    }
    figures |= {f"collapse_steps.{kind}" for kind in ("md", "tex", "csv")}
    others = {"audit.md", "audit.csv", "index.html", "tables.tex", ZIP, MARKER}
    assert set(files) == TABLES | STATISTICS | figures | others
    html = files["index.html"].decode()
    assert "the paper&#39;s own curves (arXiv 2606.10968), not trained here" in html
    assert "CPPO has the highest score on 4 of 4 models" in html
    assert "CISPO collapses: its best is 49.51 at step 145" in html
    assert html.count("not seen in these curves") == 2
    assert len(set(re.findall(r"<code>(paper-Qwen3[^<]+)</code>", html))) == 28
    assert html.count("<svg") == 3  # curves, diagnostics, a collapse
    counted = Counter(re.findall(r'\bid="([^"]+)"', html))
    assert max(counted.values()) == 1
    assert b"core" not in files["table_main.csv"]
    assert len(files["audit.csv"].splitlines()) == 1 + 28 * 4


def test_the_paper_report_without_an_import_says_what_to_do(
    demo_request: ReportRequest, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="cppo reference import"):
        build_report(paper_request(demo_request.uri, tmp_path / "main"))


def test_the_zip_is_a_latex_project(demo_request: ReportRequest) -> None:
    build_report(demo_request)
    with zipfile.ZipFile(demo_request.out / ZIP) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    main = files["main.tex"].decode()
    inputs = {f"{name}.tex" for name in re.findall(r"\\input\{(\w+)\}", main)}
    shown = set(re.findall(r"\\includegraphics\[.*?\]\{(\w+\.pdf)\}", main))
    assert {"table_main.tex", "table_full.tex", "numbers.tex", "methods.tex"} <= inputs <= set(files)
    assert shown == {"figure_curves.pdf", "figure_diagnostics.pdf"}
    assert all(files[name] == (demo_request.out / name).read_bytes() for name in (*inputs, *shown))
    assert files["methods.md"] == (demo_request.out / "methods.md").read_bytes()
    assert b"Sweep demo has 2 methods (GRPO, CPPO) on 1 model (mini\\_base)" in files["methods.md"]
    assert b"\\newcommand{\\cppoDemoMiniBaseCppoBest}{51.00} %" in files["numbers.tex"]
    assert main.rstrip().endswith(r"\end{document}")


def copies(empty_store: Path, source: str, folder: Path, order: Sequence[int]) -> str:
    """A store with the runs of another, under other ids, made in this order at other times."""
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    old, new = MlflowClient(source), MlflowClient(uri)
    new.create_experiment("another")  # so that the numbers of experiments differ too
    number = new.create_experiment(schema.experiment_name("mini"))
    found = old.search_runs(["1"], order_by=["attributes.start_time ASC"])
    for position, index in enumerate(order):
        run = found[index]
        tags = {name: value for name, value in run.data.tags.items() if name.startswith("cppo.")}
        made = new.create_run(number, start_time=10_000 + position, tags=tags).info.run_id
        for name in sorted(run.data.metrics, reverse=bool(position % 2)):
            history = old.get_metric_history(run.info.run_id, name)
            if position % 2:
                history = history[::-1]
            new.log_batch(made, metrics=[Metric(name, one.value, one.timestamp, one.step) for one in history])
        new.set_terminated(made)
    return uri


def without_ids(request: ReportRequest) -> Iterator[tuple[str, bytes]]:
    """The files with MLflow's ids of runs as the ids of the configurations, experiments as N."""
    ids = {run.info.run_id: run.data.tags[schema.TAG_RUN_ID] for run in found_runs(request)}
    for name, data in contents(request.out).items():
        for old, new in ids.items():
            data = data.replace(old.encode(), new.encode())
        yield name, re.sub(rb"#/experiments/\d+/", b"#/experiments/N/", data)


def found_runs(request: ReportRequest) -> list:  # type: ignore[type-arg]
    client = MlflowClient(request.uri)
    experiment = client.get_experiment_by_name(request.experiment)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (2, 3, 1, 0)])
def test_equal_runs_give_equal_bytes_in_whatever_order_they_came(
    demo_request: ReportRequest, empty_store: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Only MLflow's own ids differ, in the list of runs and the page; not even they do in the other files."""
    build_report(demo_request)
    uri = copies(empty_store, demo_request.uri, tmp_path / "other", order)
    other = replace(demo_request, uri=uri, out=tmp_path / "other" / "report")
    build_report(other)
    first, second = contents(demo_request.out), contents(other.out)
    differing = {name for name in first if first[name] != second.get(name)}
    assert differing <= {"runs.csv", "index.html", "report.json"}  # the last has the page's fingerprint
    records = [json.loads(files["report.json"]) for files in (first, second)]
    for record in records:
        record["files"] = {name: digest for name, digest in record["files"].items() if name not in differing}
    assert records[0] == records[1]
    sides = [
        {name: data for name, data in without_ids(one) if name != "report.json"}
        for one in (demo_request, other)
    ]
    assert sides[0] == sides[1]
