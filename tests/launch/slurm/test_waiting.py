"""Jobs that wait train with the code of their submission, and end as they start if the first of a launch fail alike.
A search whose workers are jobs: the command follows them, whoever ends, and their trials are the search's.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState

from cppo_lab.launch.slurm.queue import Ledger, in_queue
from cppo_lab.runs.folder import read_status
from cppo_lab.runs.machine import code_state
from cppo_lab.search import worker
from cppo_lab.search.study import find_trials, storage_url
from dev.slurm.cluster import Cluster
from tests.conftest import TINY, Command, write
from tests.launch.slurm.conftest import ROOT
from tests.recorded import mlflow_runs
from tests.search.made_search import made_tuning, search_values
from tests.tracking.fake_server import FakeServer
from tests.tracking.test_notify import bodies, events, receiver, url
from tests.waiting import until

__all__ = ["receiver"]  # a fixture
pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def own_rule(workspace: Path, monkeypatch: pytest.MonkeyPatch, module: str, seeds: str) -> str:
    """A sweep of a user's rule, the function `own` of a module, which jobs find in the folder `site`."""
    site = str(workspace / "site")
    files = {
        "site/acme_rule.py": module,
        "rule/own.yaml": "name: own\ndelta: ${trust_region.delta}\n",
        "mine.yaml": "title: Mine\nquestion: Why?\nmodels: {mini: [mini_base]}\nvariants: {a: {rule: own}}\n"
        f"axes: {{seed: [{seeds}]}}\n",
    }
    write(workspace, files)
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
    slurm.call("scontrol release", slurm.call("squeue --noheader --format=%A").strip())
    until("the run has ended", lambda: read_status(run).get("status") in ("done", "collapsed", "failed"))
    assert read_status(run)["status"] == "done", read_status(run)
    assert not (workspace / "new").exists()
    places = (workspace / "old").read_text().splitlines()
    assert places == [str(code / "cppo_lab" / "__init__.py"), str(code / "acme_rule.py")]
    until("the store has it", lambda: bool(mlflow_runs()))
    [stored] = mlflow_runs()
    assert stored.data.tags["cppo.env.commit"] == code_state(ROOT).commit  # of the checkout, not of the copy


def test_three_equal_failures_hold_the_jobs_that_wait_and_a_webhook_hears_of_it(
    slurm: Cluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command, receiver: FakeServer
) -> None:
    wrong = "def own(tokens, *, delta):\n    raise RuntimeError('wrong')\n"
    sweep = own_rule(workspace, monkeypatch, wrong, "0, 1, 2, 3")
    monkeypatch.setenv("CPPO_NOTIFY_URL", url(receiver))
    cppo(f"launch {sweep} launcher=slurm launcher.workers=1")
    cppo(f"watch {sweep} --every 1", code=4)
    why = "the first 3 runs of the launch failed alike: RuntimeError: wrong"
    failed = ("failed", "RuntimeError: wrong")
    assert cppo(f"status {sweep} --json").states == [failed] * 3 + [("missing", why)]
    until("the last job says that all have ended", lambda: len(receiver.received) >= 4)
    assert events(receiver) == ["failed"] * 3 + ["ended"]
    assert bodies(receiver)[-1]["text"].endswith("ended: 0 done, 3 failed, 1 left")


def test_a_search_is_followed_until_its_workers_have_ended(
    bare_slurm: Cluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    tuning = made_tuning(search_values(trials=2))
    searches = workspace / "runs" / "searches"
    command = "tune ./tune.yaml launcher=slurm launcher.workers=2 +launcher.sbatch.hold=true"
    wait = worker.time.sleep

    def when_it_follows(do: Callable[[], None]) -> None:
        """Once the command has said what the workers do, and is about to wait: `do` it. Later it looks often."""
        first = [do]

        def sleep(seconds: float) -> None:
            if first:
                first.pop()()
            wait(min(seconds, 0.2))

        monkeypatch.setattr("cppo_lab.search.worker.time", SimpleNamespace(sleep=sleep))

    when_it_follows(lambda: signal.raise_signal(signal.SIGINT))
    said = cppo(command, code=128 + signal.SIGINT)
    queued = in_queue(searches)
    assert len(queued) == 2
    assert "Slurm: " in said.err  # it follows them
    assert "the workers keep running under Slurm; the same command watches them again" in said.err

    def release() -> None:
        jobs = in_queue(searches)
        assert jobs.keys() == queued.keys()
        bare_slurm.call("scontrol release", ",".join(job.job for job in jobs.values()))

    when_it_follows(release)
    said = cppo(command)
    assert "Slurm: " in said.err
    assert [trial.state for trial in find_trials(tuning, storage_url())] == [TrialState.COMPLETE] * 2
    assert "best trial" in said.out
    with Ledger(searches) as ledger:
        assert len(ledger.tasks_of("tune-mini_base-worker-0")) == 1
