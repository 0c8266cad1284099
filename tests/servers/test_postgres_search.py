"""A search whose study and whose records are both in PostgreSQL, with workers on real runs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import create_engine, text

from cppo_lab import schema
from cppo_lab.search.study import exclusive, storage_url
from cppo_lab.tracking import address
from cppo_lab.tracking.address import absolute_uri
from cppo_lab.tracking.client import open_client
from dev.servers.postgres import Postgres
from tests.conftest import Command
from tests.search.made_search import search_values, write_search
from tests.search.terminals import searching
from tests.servers.conftest import found_in
from tests.waiting import until

TRIALS = 3
STUDY = "tune-mini_base"


@pytest.mark.slow
def test_workers_search_in_postgres(
    workspace: Path, postgres: Postgres, new_database: Callable[[], str]
) -> None:
    """One of the local launcher, which finds the passwords in its environment; then two at once."""
    url, uri = postgres.make_database("studies"), new_database()
    write_search(search_values(trials=TRIALS))
    with searching({address.VARIABLE: uri}) as search:
        words = ["--storage", url]
        assert search.tune("--trials", "1", "launcher=local", "launcher.workers=1", *words).end() == 0
        assert [trial.state for trial in trials(url)] == [TrialState.COMPLETE]
        workers = [search.tune("launcher=inline", *words) for _ in range(2)]
        for worker in workers:  # one of them may leave while the other still trains
            worker.end()
        assert search.tune(*words).end() == 0  # nothing is left to do
    printed, ended = Path("terminals.log").read_text(), trials(url)
    assert [trial.number for trial in ended] == list(range(TRIALS)), printed
    assert {trial.state for trial in ended} == {TrialState.COMPLETE}, printed
    assert len({str(trial.params) for trial in ended}) == TRIALS

    client, [search] = open_client(absolute_uri(uri)), optuna.get_all_study_summaries(storage_url(url))
    runs = client.search_runs([client.get_experiment_by_name("cppo-mini").experiment_id])
    trained = {run.data.tags.get(schema.TAG_RUN_ID) for run in runs} - {None}
    assert len(runs) == 1 + 2 * TRIALS and trained == {trial.user_attrs["run_ids"][0] for trial in ended}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert "postgresql+psycopg2://cppo:***@127.0.0.1:" in printed
    assert found_in(postgres.password, workspace) == []
    texts = [str(run.to_dictionary()) for run in runs] + [str(trial.user_attrs) for trial in ended]
    assert postgres.password not in "".join([printed, str(search.user_attrs), *texts])


def trials(url: str) -> list[FrozenTrial]:
    return optuna.load_study(study_name=STUDY, storage=storage_url(url)).get_trials()


def test_one_worker_at_a_time_changes_a_study_on_a_server(postgres: Postgres) -> None:
    """Of any machine: two that begin at once would both add the trials that are left."""
    url = storage_url(postgres.make_database("turns"))
    order: list[str] = []

    def second() -> None:
        with exclusive(url):
            order.append("second")

    engine = create_engine(url)
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with ThreadPoolExecutor(1) as pool:
        with exclusive(url):
            begun = pool.submit(second)
            with engine.connect() as connection:
                until("the second waits", lambda: connection.execute(waiting).scalar_one() == 1)
            order.append("first")
        begun.result()
    assert order == ["first", "second"]


@pytest.mark.parametrize("wrong", ["password", "database"])
def test_a_storage_that_cannot_be_used_is_one_line_without_the_password(
    cppo: Command, postgres: Postgres, wrong: str
) -> None:
    good = postgres.url("postgres")
    url, reason = {
        "password": (good.replace(postgres.password, "s3cret"), "password authentication failed"),
        "database": (postgres.url("nowhere"), 'database "nowhere" does not exist'),
    }[wrong]
    write_search(search_values())
    [line] = cppo("tune ./tune.yaml --storage", url, code=2).err.splitlines()
    assert "postgresql+psycopg2://cppo:***@127.0.0.1" in line and reason in line
    assert "s3cret" not in line and postgres.password not in line
    assert not Path("runs/searches").exists()
