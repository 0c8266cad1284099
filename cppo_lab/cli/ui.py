"""Pages on this machine: `cppo ui`, the MLflow UI for the tracking store, with links to the experiments; and `cppo
dash`, the report of a sweep with the states of its runs and the time left, renewed while they go on.
"""

import contextlib
import errno
import html
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.cli.command import Exit, answer
from cppo_lab.core_records import core_names
from cppo_lab.errors import UserError, describe, interrupt_on_termination, say
from cppo_lab.files import redacted
from cppo_lab.plugins import install_extra
from cppo_lab.tracking.address import is_new, require_store, sqlite_file, tracking_uri


def ui(options: Namespace) -> int:
    """Serve the store until Ctrl-C and say what to open; of a store that is a server, only say it."""
    uri = tracking_uri()
    if uri.startswith("http"):
        served = redacted(uri).rstrip("/")
        _show([*report_link(options.report, served), *_links(uri, served)], options)
        return Exit.DONE
    require_mlflow_server()
    require_store(uri)
    interrupt_on_termination()
    with contextlib.suppress(KeyboardInterrupt):
        port = free_port(options.host, options.port)
        if not is_loopback(options.host):
            say(
                f"cppo: --host {options.host}: everyone who can reach this machine can see and change the runs"
            )
        address = _served_at(options.host, port)
        links = report_link(options.report, address)
        say(f"starting the MLflow UI for {redacted(uri)} ...")

        def find_links() -> None:
            links.extend(_links(uri, address))

        # The server takes seconds to start, and so does the client that finds the links. Not at once where that client
        # may have to make the tables first.
        database = sqlite_file(uri)
        has_tables = database is not None and not is_new(database)
        if not has_tables:
            find_links()
        with serving(uri, options.host, port, find_links if has_tables else None) as last_words:
            _show(links, options)
            say("Ctrl-C ends it.")
            say(f"cppo: mlflow server ended by itself: {last_words()}")
            return Exit.NO
    return Exit.DONE


def _links(uri: str, address: str) -> list[tuple[str, str]]:
    """What there is to open, with its address: the runs of each experiment, and of all of them together."""
    from cppo_lab.tracking.client import open_client
    from cppo_lab.tracking.page import comparison, page, save_view

    client, shown, links = open_client(uri), [], []
    for core in (*core_names(), schema.PAPER):
        experiment = client.get_experiment_by_name(schema.experiment_name(core))
        if experiment is None or experiment.lifecycle_stage != "active":
            continue
        save_view(client, experiment.experiment_id)
        experiment = client.get_experiment(experiment.experiment_id)
        shown.append(experiment)
        links.append((experiment.name, address + page(experiment)))
    if len(shown) > 1:
        links.append(("all in the same charts", address + comparison(shown)))
    return links or [("no runs yet", address)]


def report_link(folder: Path | None, address: str) -> list[tuple[str, str]]:
    """The page of a report, whose runs then lead to MLflow's page at `address`; nothing without a folder.

    Raises UserError if there is no page.
    """
    if folder is None:
        return []
    from urllib.parse import urlencode

    from cppo_lab.reports.saved import PAGE

    page = folder / PAGE
    if not page.is_file():
        raise UserError(f"--report {folder}: no report is there: make one with `cppo report`")
    return [("the report", f"{page.resolve().as_uri()}?{urlencode({'mlflow': address})}")]


def _show(links: list[tuple[str, str]], options: Namespace) -> None:
    if options.json:
        answer(options, {"links": [{"name": name, "url": link} for name, link in links]})
        options.answer_now()
    else:
        for name, link in links:
            print(f"{name}\n  {link}")
        sys.stdout.flush()
    if options.open:
        import webbrowser

        webbrowser.open(links[0][1])


# MLflow's server

PORTS = range(5000, 5060)  # tried in turn; browsers open neither 5060 nor 5061
_END_SECONDS = 10.0
_SETTINGS = {
    # Switch off the workers for language-model jobs (seven processes).
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    # The folder that uvicorn puts first on Python's path; its default is the working folder.
    "UVICORN_APP_DIR": os.devnull,
    "UVICORN_LOG_LEVEL": "warning",  # so that the last line is the reason why a server ended
}


def require_mlflow_server() -> None:
    """Raises UserError if only MLflow's client is installed."""
    try:
        metadata.distribution("mlflow")
    except metadata.PackageNotFoundError:
        raise UserError(
            f"package 'mlflow' (its server and pages) is not installed: {install_extra('ui')}"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port(host: str, wanted: int | None) -> int:
    """`wanted`, or the first free port of PORTS.

    Raises UserError if it is taken, or if the host is not an address of this machine.
    """
    if wanted is not None and not 1 <= wanted <= 65_535:
        raise UserError(f"--port {wanted}: must be in [1, 65535]: leave it out, or choose another")
    if not host.strip():
        raise UserError(f"--host {host!r}: name an address of this machine, or leave it out")
    for port in PORTS if wanted is None else [wanted]:
        try:
            family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(place)
            return port
        except socket.gaierror as error:
            raise UserError(f"--host {host}: {error.strerror}: name an address of this machine") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(
                    f"cannot listen on {host} port {port}: {error.strerror}: name an address of this machine"
                ) from None
    if wanted is not None:
        raise UserError(f"port {wanted} of {host} is taken: leave --port out, or choose another")
    raise UserError(
        f"ports {PORTS.start} to {PORTS.stop - 1} of {host} are taken: choose another with --port"
    )


def _served_at(host: str, port: int) -> str:
    """The address of the page. A server on all addresses is opened at this machine's."""
    if host in ("0.0.0.0", "::"):  # noqa: S104  recognised, and opened at the loopback address
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def serving(
    uri: str, host: str, port: int, meanwhile: Callable[[], None] | None = None
) -> Iterator[Callable[[], str]]:
    """Run MLflow's server for the store at `uri` until it listens; end it and its workers after the block.

    Yields a function that waits for the server to end by itself, and returns its last words. `meanwhile` is called
    while it starts. Raises UserError if it does not start.
    """
    # `python -m mlflow`, without the collection of garbage, which takes a fifth of its imports' time.
    start = "import gc; gc.disable(); from mlflow.cli import cli; cli.main()"
    words = ["-c", start, "server", "--host", host, "--port", str(port), "--workers", "1"]
    # The store is passed by the environment, since the process list would show a password.
    environment = {**_SETTINGS, **os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    last: deque[str] = deque(maxlen=1)  # line of its output
    with subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that Ctrl-C reaches only this process, which then ends the whole group
    ) as server:
        assert server.stdout is not None
        reader = threading.Thread(target=last.extend, args=(server.stdout,), daemon=True)
        reader.start()

        def last_words() -> str:
            server.wait()
            reader.join(_END_SECONDS)
            return redacted("".join(last)).strip() or "it printed nothing"

        try:
            if meanwhile is not None:
                meanwhile()
            while server.poll() is None and not _listens(host, port):
                time.sleep(0.1)
            if server.poll() is not None:
                raise UserError(f"mlflow server did not start: {last_words()}")
            yield last_words
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, number)
                reader.join(_END_SECONDS)  # the output ends with the last process of the group


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


# The page of `cppo dash`

HOST = "127.0.0.1"
_NO_PAGE = '<!doctype html><meta charset="utf-8"><title>Runs</title><header></header><p>No report yet.</p>'


class Page(SimpleHTTPRequestHandler):
    """The files of the report in `directory`. The page itself begins with `now`, and is asked for again after `every`
    seconds until every run is a result.
    """

    def __init__(self, *given: Any, now: Callable[[], tuple[str, bool]], every: float, **named: Any) -> None:
        self.now, self.every = now, every
        super().__init__(*given, **named)

    def do_GET(self) -> None:
        """Answer a request; of a name that another site gave this machine, with an error."""
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            self.send_error(403)
            return
        if self.path.partition("?")[0] not in ("/", "/index.html"):
            super().do_GET()
            return
        now, goes_on = self.now()
        page = Path(self.directory, "index.html")
        is_ready = page.is_file()
        text = page.read_text(encoding="utf-8") if is_ready else _NO_PAGE
        body = text.replace("</header>", f"</header>\n{now}", 1).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if goes_on or not is_ready:
            self.send_header("Refresh", f"{self.every:g}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """One line on a request that has no answer; none where the browser has gone."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            say(f"cppo: a request was not answered: {describe(error)}")


def dash(options: Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from cppo_lab.cli import reporting
    from cppo_lab.cli.monitoring import status_reader
    from cppo_lab.cli.training import planned
    from cppo_lab.sweep import status

    # Of `cppo report`.
    vars(options).update(source="runs", partial=True, palette="paper", figures=None, study=None, log=False)
    reporting.require_every(options)
    plan, _ = planned(options)
    read_statuses = status_reader(plan)

    def now() -> tuple[str, bool]:
        runs = read_statuses()
        lines = html.escape(f"{status.totals(runs)}\n\n{status.table(runs)}")
        goes_on = any(run.state not in schema.FINISHED for run in runs)
        return f'<section id="now"><h2>Runs now</h2>\n<pre>{lines}</pre>\n</section>', goes_on

    interrupt_on_termination()
    with tempfile.TemporaryDirectory(prefix="cppo-") as place, contextlib.suppress(KeyboardInterrupt):
        options.out = Path(place, plan.name)
        handler = partial(Page, directory=str(options.out), now=now, every=options.every)
        port = free_port(HOST, options.port)
        with _Server((HOST, port), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = _served_at(HOST, port)
            answer(options, {"links": [{"name": options.sweep, "url": address}]}, address)
            if options.json:
                options.answer_now()
            say("Ctrl-C ends it.")
            for _ in reporting.watch_report(options, patient=True):
                pass
            while True:
                time.sleep(options.every)
    return Exit.DONE
