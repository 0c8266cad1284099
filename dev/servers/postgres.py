"""A real PostgreSQL cluster of our own: in a folder below /tmp, on loopback, with a password."""

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from dev.apt import install_packages
from dev.ceiling import CEILING_SECONDS
from dev.errors import DevError
from dev.servers.group import free_port
from dev.slurm.daemons import everything

USER = "cppo"
PROGRAMS = ("initdb", "pg_ctl", "psql", "postgres")
DEBIAN = Path("/usr/lib/postgresql")  # where Debian and Ubuntu install the server, one folder per version
SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
shared_buffers = 64MB
fsync = off
"""


def missing() -> list[str]:
    """The programs that a cluster needs and this machine lacks."""
    return [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]


def install() -> bool:
    """Installs PostgreSQL with apt-get, unless it is there. Returns whether there was anything to do.

    Raises:
        DevError: There is no apt-get, no root, or apt-get fails.
    """
    # Keep Debian's package from creating its own cluster.
    folder = Path("/etc/postgresql-common")
    if missing() and os.getuid() == 0 and not folder.exists():
        folder.mkdir()
        (folder / "createcluster.conf").write_text("create_main_cluster = false\n")
    return install_packages(["postgresql"], missing)


def default_folder(name: str) -> Path:
    """Where the cluster `name` of this user is kept."""
    return Path(f"/tmp/cppo-postgres-{os.getuid()}") / name


class Postgres:
    """The cluster in `folder`. PostgreSQL refuses to run as root, so root's clusters belong to an unprivileged user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"

    def start(self) -> bool:
        """Starts it, and creates it first if necessary. Returns whether there was anything to do.

        It does not wait for the disk: its data survives its own crash, but not the machine's.

        Raises:
            DevError: It can't be started here, or does not come up.
        """
        if absent := missing():
            raise DevError(f"not installed: {', '.join(absent)}: run `python3 -m dev.servers install`")
        if self.running():
            return False
        if not (self.data / "PG_VERSION").exists():
            self._create()
        self._call("pg_ctl", "start", "--wait", f"--timeout={CEILING_SECONDS:g}", f"--pgdata={self.data}",
                   f"--log={self.folder / 'log'}")  # fmt: skip
        return True

    def _create(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o755)
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(12))
        if (owner := _owner()) is not None:
            for path in (self.folder, password):
                shutil.chown(path, owner)
        self._call("initdb", f"--pgdata={self.data}", f"--username={USER}", "--auth=scram-sha-256",
                   f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync",
                   "--no-instructions")  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(port=free_port()))

    def running(self) -> bool:
        """Whether it runs."""
        if not self.data.exists():
            return False
        return not self._run("pg_ctl", "status", f"--pgdata={self.data}").returncode

    def crash(self) -> bool:
        """SIGKILL for its first process, which takes the others with it. Returns whether there was anything to do.

        Raises:
            DevError: One of them does not end.
        """
        if not self.running():
            return False
        first = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(first, signal.SIGSTOP)  # otherwise it might start another one meanwhile
        family = [process for process in everything() if first in (process.pid, process.parent)]
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + CEILING_SECONDS
        # The next server does not start while one of them has the shared memory.
        while left := [process.pid for process in family if process.alive()]:
            if time.monotonic() > deadline:
                raise DevError(f"processes {left} of PostgreSQL in {self.folder} do not end")
            time.sleep(0.05)
        # pg_ctl takes a pid for a running server until the dead process has been reaped.
        (self.data / "postmaster.pid").unlink()
        return True

    def remove(self) -> None:
        """Stops it and removes its data."""
        if self.running():
            self._call("pg_ctl", "stop", "--mode=immediate", "--wait", f"--timeout={CEILING_SECONDS:g}",
                       f"--pgdata={self.data}")  # fmt: skip
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def password(self) -> str:
        """The password of the only user."""
        return (self.folder / "password").read_text()

    @property
    def port(self) -> int:
        """The TCP port, always the same."""
        found = re.findall(r"^port = (\d+)", (self.data / "postgresql.conf").read_text(), re.MULTILINE)
        return int(found[-1])

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, with the password."""
        return f"postgresql://{USER}:{quote(self.password)}@127.0.0.1:{self.port}/{database}"

    def make_database(self, name: str, like: str = "template1") -> str:
        """Create a database as a copy of another one; returns its URL."""
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{like}"')
        return self.url(name)

    def sql(self, text: str, database: str = "postgres") -> str:
        """The output of an SQL command.

        Raises:
            DevError: The server refuses it.
        """
        options = ["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
        options.append("--set=VERBOSITY=terse")
        place = ["--host=127.0.0.1", f"--port={self.port}", f"--username={USER}", f"--dbname={database}"]
        return self._call("psql", *options, *place, f"--command={text}", PGPASSWORD=self.password)

    def _call(self, program: str, *arguments: str, **variables: str) -> str:
        done = self._run(program, *arguments, **variables)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise DevError(f"{program} failed: {reason}; the server's log is {self.folder / 'log'}")
        return done.stdout

    def _run(self, program: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        owner = _owner()
        # By the project's own variables, the tests that started a server find it again.
        marks = {name: value for name, value in os.environ.items() if name.startswith("CPPO_")}
        return subprocess.run(
            [program, *arguments], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            user=owner, group=pwd.getpwnam(owner).pw_gid if owner else None,
            extra_groups=[] if owner else None, cwd="/",
            env={"PATH": _path(), "LC_ALL": "C", **marks, **variables},
        )  # fmt: skip


def _path() -> str:
    """Where to look for programs: Debian's newest version first."""
    versions = sorted(DEBIAN.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return os.pathsep.join([*map(str, versions), os.environ.get("PATH", os.defpath)])


def _owner() -> str | None:
    """The user who owns clusters started by root; None if this process is not root."""
    if os.getuid() != 0:
        return None
    users = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in users else "nobody"
