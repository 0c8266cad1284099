"""Jobs that wait train with the code of their submission, and end as they start if the first of a launch fail alike."""

import os
import sys
from pathlib import Path

import pytest

from cppo_lab.runs.folder import read_status
from cppo_lab.runs.machine import code_state
from dev.slurm.cluster import Cluster
from tests.conftest import TINY, Command
from tests.launch.slurm.conftest import ROOT
from tests.recorded import mlflow_runs
from tests.tracking.fake_server import FakeServer
from tests.tracking.test_notify import bodies, receiver, url
from tests.waiting import until

__all__ = ["receiver"]  # a fixture
pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def own_rule(workspace: Path, monkeypatch: pytest.MonkeyPatch, module: str, seeds: str) -> str:
    """A sweep of a user's rule, the function `own` of a module, which jobs find in the folder `site`."""
    site = str(workspace / "site")
    for name, text in {
        "site/acme_rule.py": module,
        "rule/own.yaml": "name: own\ndelta: ${trust_region.delta}\n",
        "mine.yaml": "title: Mine\nquestion: Why?\nmodels: {mini: [mini_base]}\nvariants: {a: {rule: own}}\n"
        f"axes: {{seed: [{seeds}]}}\n",
    }.items():
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, str(ROOT)]))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "acme_rule", raising=False)
    return " ".join(["./mine.yaml", *TINY[1:], "rule.path=acme_rule:own"])


RULE = """
import pathlib
import cppo_lab
import acme_helper
from cppo_lab.maths.masks import masked

def own(tokens, *, delta):
    pathlib.Path("{place}", acme_helper.NAME).write_text(cppo_lab.__file__ + chr(10) + __file__)
    return masked(tokens, token_fails=tokens.required_divergence > delta)
"""


def test_an_edit_while_a_job_waits_changes_nothing(
    slurm: Cluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    sweep = own_rule(workspace, monkeypatch, RULE.format(place=workspace), "0")
    site = workspace / "site"
    (site / "acme_helper.py").write_text("NAME = 'old'\n")
    cppo(f"launch {sweep} launcher=slurm +launcher.sbatch.hold=true")
    [code] = (workspace / "runs" / "code").iterdir()
    (site / "acme_rule.py").write_text("raise RuntimeError('edited')\n")
    (site / "acme_helper.py").write_text("NAME = 'new'\n")
    [run] = [path.parent for path in workspace.glob("runs/*/status.json")]
    slurm.call("scontrol", "release", slurm.call("squeue", "--noheader", "--format=%A").strip())
    until("the run has ended", lambda: read_status(run).get("status") in ("done", "collapsed", "failed"))
    assert read_status(run)["status"] == "done", read_status(run)
    assert not (workspace / "new").exists()
    places = (workspace / "old").read_text().splitlines()
    assert places == [str(code / "cppo_lab" / "__init__.py"), str(code / "acme_rule.py")]
    until("the store has it", lambda: bool(mlflow_runs()))
    [stored] = mlflow_runs()
    assert stored.data.tags["cppo.env.commit"] == code_state().commit  # of the checkout, not of the copy


def test_three_equal_failures_hold_the_jobs_that_wait_and_a_webhook_hears_of_it(
    slurm: Cluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command, receiver: FakeServer
) -> None:
    wrong = "def own(tokens, *, delta):\n    raise RuntimeError('wrong')\n"
    sweep = own_rule(workspace, monkeypatch, wrong, "0, 1, 2, 3")
    monkeypatch.setenv("CPPO_NOTIFY_URL", url(receiver))
    cppo(f"launch {sweep} launcher=slurm launcher.workers=1")
    cppo(f"watch {sweep} --every 1", code=4)
    runs = cppo(f"status {sweep} --json").answer["runs"]
    why = "the first 3 runs of the launch failed alike: RuntimeError: wrong"
    failed = ("failed", "RuntimeError: wrong")
    assert [(run["state"], run["reason"]) for run in runs] == [failed] * 3 + [("missing", why)]
    until("the last job says that all have ended", lambda: len(receiver.received) >= 4)
    assert [body["event"] for body in bodies(receiver)] == ["failed"] * 3 + ["ended"]
    assert bodies(receiver)[-1]["text"].endswith("ended: 0 done, 3 failed, 1 left")
