"""Passwords and tokens are in no file, message, tag or list of processes that somebody else can read."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.cli import ui
from cppo_lab.cli.command import parse
from cppo_lab.cores.verl.cluster import private_token
from cppo_lab.errors import UserError
from cppo_lab.files import redacted
from cppo_lab.tracking.address import locked
from dev.servers.faulty_proxy import FaultyProxy
from dev.servers.group import free_port
from dev.servers.postgres import Postgres
from tests.conftest import Command, user_error
from tests.fuzz.mangling import fuzz, within

SECRET = "hunter2-s3cret-9"
URI = f"postgresql://ada:{SECRET}@127.0.0.1:1/mlflow"


FORMS = (
    "HF_TOKEN={}", "export WANDB_API_KEY={}", "MLFLOW_TRACKING_PASSWORD='{}'", "--password {}", "--token={}",
    "postgresql://ada:{}@db/x", "https://{}@github.com/a", "https://h/?access_token={}", "db_password: {}",
    '"api_key": "{}"', "Authorization: Bearer {}", "aws_secret_access_key = {}", "'client_secret': '{}'",
)  # fmt: skip


SETTINGS = st.sampled_from([form.format(SECRET) for form in FORMS])
BEFORE, AFTER = st.text("ab \n'\"{=:,", max_size=8), st.sampled_from(["", " x", "\nx", ")"])


@fuzz(300)
@given(st.builds("{} {}{}".format, BEFORE, SETTINGS, AFTER) | st.text(max_size=60))
def test_settings_options_headers_and_any_other_text(text: str) -> None:
    assert SECRET not in redacted(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "piece", ["a-", "A_", "--", "password", "secret = ", "://", '"', "TOKEN=", "sk-", "Bearer "]
)
def test_a_long_text_takes_no_long_time(piece: str) -> None:
    """No pattern reads on to the end from every place: of so many characters that would be some 10^10 steps.

    It has fifteen times the processor time that it takes.
    """
    with within(30, signal.ITIMER_VIRTUAL):
        redacted(piece * (250_000 // len(piece)))


def test_a_report_names_its_command_without_passwords(cppo: Command) -> None:
    """The command is on the page, in the drawings and in report.json."""
    with patch("cppo_lab.cli.reporting._own_request", Mock(side_effect=UserError("enough"))) as request:
        cppo(f"report quickstart tracking.uri={URI}", code=2)
    masked = "cppo report quickstart tracking.uri=postgresql://ada:***@127.0.0.1:1/mlflow"
    assert request.call_args.args[1]["command"] == masked


@pytest.mark.parametrize("mode, expected", [(0o2775, 0o664), (0o755, 0o644)])
def test_a_lock_lies_beside_its_file_and_is_shared_where_its_folder_is(
    tmp_path: Path, mode: int, expected: int
) -> None:
    """Links and pipes in its place: tests/hostile/test_links.py."""
    tmp_path.chmod(mode)
    before = os.umask(0o022)
    try:
        with locked(tmp_path / "x.db"):
            assert stat.S_IMODE((tmp_path / ".x.db.lock").stat().st_mode) == expected
    finally:
        os.umask(before)


def test_tokens_and_passwords_are_readable_by_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    try:
        token = private_token(tmp_path / "token")
        monkeypatch.setattr(
            "dev.servers.postgres.Postgres._call", lambda *_: (tmp_path / "pg" / "data").mkdir()
        )
        monkeypatch.setattr("dev.servers.postgres._owner", lambda: None)
        postgres = Postgres(tmp_path / "pg")
        postgres._create()
    finally:
        os.umask(before)
    for path in (token, tmp_path / "pg" / "password"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert len(token.read_text()) >= 32
    assert len(postgres.password) >= 12


def test_the_page_of_the_store_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless asked otherwise, which is said; and its password is in no list of processes."""
    assert parse(["ui"]).host == "127.0.0.1"
    commands: list[list[str]] = []
    says = "import os; print('cannot connect to', os.environ['MLFLOW_BACKEND_STORE_URI'])"

    def start(command: list[str], real: Any = subprocess.Popen, **options: Any) -> Any:
        commands.append(command)
        return real([sys.executable, "-c", says], **options)

    monkeypatch.setattr("subprocess.Popen", start)
    with user_error(r"ada:\*\*\*@"), ui.serving(URI, "127.0.0.1", free_port()):
        pass
    assert SECRET not in " ".join(commands[0])
    assert commands[0][commands[0].index("--host") + 1] == "127.0.0.1"


def test_the_servers_of_developers_are_for_this_machine() -> None:
    with FaultyProxy(free_port()) as proxy:
        assert proxy.uri.startswith("http://127.0.0.1:")
        assert proxy._server.server_address[0] == "127.0.0.1"
