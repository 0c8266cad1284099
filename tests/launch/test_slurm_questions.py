"""What Slurm's commands are asked, and what is said when they answer with an error, with junk, or never."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm import queue
from cppo_lab.launch.slurm.queue import cancel, jobs_of, shows_others

SOMEBODY = 1_234_567  # the uid of an ordinary user
SILENT = "exec /bin/sleep 600"
Command = Callable[[str, str], None]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Makes a stand-in for a command from the text of a shell script. There is no other command on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("FOLDER", str(tmp_path))

    def put(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return put


def test_without_slurm_a_login_node_is_named(command: Command) -> None:
    with pytest.raises(UserError, match=r"sbatch, squeue, scancel, srun not found .* go to a login node"):
        jobs_of([])


def test_a_command_that_cannot_be_started_is_named(command: Command, tmp_path: Path) -> None:
    for name in ("sbatch", "squeue", "scancel", "srun"):
        command(name, "")
    (tmp_path / "bin" / "squeue").write_text("#!/nowhere/sh\n")
    with pytest.raises(
        UserError, match=r"squeue cannot be started \(No such file or directory\): check Slurm's"
    ):
        jobs_of([])


def test_the_queue_is_read_where_scontrol_is_not_installed(command: Command) -> None:
    command("squeue", 'printf "%s\\n" "$@" > "$FOLDER/asked"')
    assert jobs_of([]) == []
    assert "--all" in Path(os.environ["FOLDER"], "asked").read_text().split()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("echo Slurmctld is DOWN; echo more; exit 1", "(Slurmctld is DOWN)"),
        ("echo cannot read slurm.conf >&2; exit 1", "(cannot read slurm.conf)"),
        ("exit 3", "(exit status 3)"),
    ],
)
def test_a_controller_that_is_down_is_said_before_the_queue_is_asked(
    command: Command, tmp_path: Path, answer: str, said: str
) -> None:
    command("scontrol", answer)
    command("squeue", 'echo > "$FOLDER/asked"')
    with pytest.raises(UserError, match="Slurm's controller does not answer") as error:
        jobs_of([])
    assert str(error.value).endswith(said)
    assert not (tmp_path / "asked").exists()


def test_a_backup_controller_is_enough(command: Command) -> None:
    command("scontrol", "echo 'Slurmctld(primary) is DOWN'; echo 'Slurmctld(backup) is UP'; exit 1")
    command("squeue", "")
    assert jobs_of([]) == []


def test_a_controller_that_never_answers_is_not_waited_for(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("scontrol", SILENT)
    with monkeypatch.context() as patch:
        patch.setattr(queue, "PING_SECONDS", 0.1)
        with pytest.raises(UserError, match="scontrol ping: no answer within 0 s"):
            jobs_of([])
    (tmp_path / "bin" / "scontrol").unlink()
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", 0.1)
    command("squeue", SILENT)
    with pytest.raises(UserError, match=r"squeue: .* did not answer within 0 s: try again later"):
        jobs_of([])
    command("scancel", SILENT)
    with pytest.raises(UserError, match=r"scancel: .* did not answer within 0 s: try again later"):
        cancel(["17"])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("echo 'Invalid user: x' >&2; echo more >&2; exit 1", "squeue: Invalid user: x: check"),
        ("echo on the other stream; exit 1", "squeue: on the other stream: check"),
        ("exit 7", "squeue: exit status 7: check"),
    ],
)
def test_an_error_of_the_queue_is_told_with_what_to_check(command: Command, answer: str, said: str) -> None:
    command("squeue", answer)
    with pytest.raises(UserError) as error:
        jobs_of([])
    assert str(error.value).startswith(said)
    assert str(error.value).endswith("that Slurm's controller is up (`scontrol ping`)")


def test_lines_that_are_no_jobs_are_left_out(command: Command) -> None:
    """A cluster's own wrapper may print what it likes; a comment may hold every character."""
    command(
        "squeue",
        r"""
for word; do case "$word" in --format=*) format="${word#--format=}";; esac; done
mark="${format%%"%i"*}"
echo "the queue is busy today"
printf '%s%s\n' "$mark" "7|1000|RUNNING|1:00|n1|None|a|b" "$mark" "not a job" "$mark" "8|root|RUNNING|1:00|n1|None|"
printf '%s%s\nd\n' "$mark" "9|1000|PENDING|0:00||Priority|c"
""",
    )
    found = [(job.job, job.owner, job.state, job.reason, job.comment) for job in jobs_of([])]
    assert found == [("7", 1000, "RUNNING", "", "a|b"), ("9", 1000, "PENDING", "Priority", "c\nd")]


def test_only_accounts_that_the_machine_knows_are_asked_for(command: Command, tmp_path: Path) -> None:
    """squeue refuses the whole request for a user whom it does not know."""
    known = {account.pw_uid for account in pwd.getpwall()}
    strangers = [next(uid for uid in range(4_000_000_000, 5_000_000_000) if uid not in known), 2**70]
    command("squeue", 'printf "%s\\n" "$@" > "$FOLDER/asked"')
    jobs_of([*strangers, *known])
    users = ",".join(map(str, sorted(known | {os.getuid()})))
    assert f"--user={users}" in (tmp_path / "asked").read_text().split()


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ("PrivateData             = none", True),
        ("PrivateData             = accounts,usage", True),
        ("PrivateData             = accounts,jobs,users", False),
        ("PrivateData             = ALL", False),
        ("SlurmctldPort           = 6817", False),
    ],
)
def test_the_cluster_says_whether_it_shows_the_jobs_of_others(
    command: Command, monkeypatch: pytest.MonkeyPatch, settings: str, shown: bool
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)
    command("scontrol", f'[ "$*" = "show config" ] && echo "Configuration data" && echo "{settings}"')
    assert shows_others() is shown


def test_jobs_of_others_count_as_hidden_where_the_cluster_does_not_answer(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.getuid() != 0 or shows_others()  # from root nothing is hidden
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert shows_others()
    monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)
    assert not shows_others()
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", 0.1)
    command("scontrol", SILENT)
    assert not shows_others()
