"""What commands do for every further run, counted: statements to the store and files opened, not seconds.

How long all of it takes for 10,000 runs is measured by benchmarks/scale.py.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun
from cppo_lab.analysis.reader import list_runs, read_sweep
from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.launch.queues import read_queues, record_dead_ends, send
from cppo_lab.runs.state import states
from cppo_lab.sweep.cost import past_costs
from cppo_lab.sweep.launch import describe_sweeps, ensure_parents, look_ahead
from cppo_lab.sweep.plan import Plan
from cppo_lab.sweep.status import run_statuses
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.upload import upload
from tests import many_runs
from tests.jobs import planned

FEW, MANY = 10, 12
SWEEP = """title: Many
question: "?"
models: {mini: [mini_base]}
variants: {grpo: {rule: grpo}, cppo: {rule: cppo}}
"""


@dataclass
class Count:
    """Statements to a database, and files opened below a folder."""

    statements: int = 0
    files: int = 0


_counting: list[tuple[Count, str]] = []


def _audit(name: str, arguments: tuple[Any, ...]) -> None:
    if name == "open" and _counting and str(arguments[0]).startswith(_counting[0][1]):
        _counting[0][0].files += 1


sys.addaudithook(_audit)  # it cannot be taken away again


@contextmanager
def counted(folder: Path) -> Iterator[Count]:
    """Counts what happens inside."""
    count = Count()

    def executed(*_: Any) -> None:
        count.statements += 1

    event.listen(Engine, "before_cursor_execute", executed)
    _counting.append((count, f"{folder}/"))
    try:
        yield count
    finally:
        _counting.clear()
        event.remove(Engine, "before_cursor_execute", executed)


def declared(folder: Path, runs: int) -> Plan:
    (folder / "many.yaml").write_text(f"{SWEEP}axes: {{seed: {list(range(runs // 2))}}}")
    return planned("./many.yaml")


def actions(plan: Plan) -> dict[str, Callable[[], object]]:
    """What the commands do beside composing and drawing, by name."""
    uri, runs = tracking_uri(), Path("runs").resolve()
    run_ids = [run.run_id for run in plan.runs]
    expected = [ExpectedRun(run.run_id, run.spec.model.name, run.variant, run.spec.seed) for run in plan.runs]
    experiment = schema.experiment_name(plan.core)

    def described() -> None:
        queued = read_queues(runs)
        idle = record_dead_ends(runs, run_ids, queued)
        ahead = look_ahead(plan, uri, queued, opens=True)
        send(list(idle), uri)
        describe_sweeps(plan, ensure_parents(plan, uri), ahead.states)

    def scored() -> None:
        listing = list_runs(uri, experiment)
        data = read_sweep(uri, experiment, plan.name, None, run_ids, listing)
        assert len(data.runs) == len(plan.runs)
        score_sweep(data, expected)

    return {
        "plan": lambda: (states(runs, run_ids, read_queues(runs)), past_costs(plan.runs)),
        "status": lambda: run_statuses(runs),
        "sync": lambda: upload([runs / run_id for run_id in run_ids], uri),
        "launch": described,
        "report": scored,
    }


# Files that are opened for a run: its lock, its status, its place in the store (`shipped.json`), its history.
FILES = {"plan": 1, "status": 1, "sync": 1, "launch": 5, "report": 1}


def test_the_store_is_not_asked_for_every_run_nor_a_file_opened_twice(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: dict[int, dict[str, int]] = {FEW: {}, MANY: {}}
    files = dict.fromkeys(FILES, 0.0)  # of each further run
    for runs, sign in ((FEW, -1), (MANY, 1)):
        folder = workspace / str(runs)
        folder.mkdir()
        monkeypatch.chdir(folder)
        plan = declared(folder, runs)
        many_runs.make_runs(folder, plan, tracking_uri())
        steps = actions(plan)
        steps["sync"]()  # those that the store knows nothing of
        steps["launch"]()  # writes what is there from then on
        for name, step in steps.items():
            with counted(folder) as count:
                step()
            statements[runs][name] = count.statements
            files[name] += sign * count.files / (MANY - FEW)
    assert statements[MANY] == statements[FEW]
    asks = {name: bool(number) for name, number in statements[MANY].items()}
    assert asks == {"plan": False, "status": False, "sync": False, "launch": True, "report": True}
    assert files == pytest.approx(FILES)
