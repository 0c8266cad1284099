"""`cppo dash`: the report of a sweep on a page of this machine, with the states of its runs and the time left, renewed
while they go on.
"""

import argparse
import contextlib
import html
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cppo_lab.cli.answer import Exit, answer
from cppo_lab.cli.parser import CommandParser, add_sweep
from cppo_lab.errors import say
from cppo_lab.signals import interrupt_on_termination

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
        """Answer one request; of a name that another site gave this machine, with an error."""
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
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


def dash(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from cppo_lab import schema
    from cppo_lab.cli import reporting
    from cppo_lab.cli.monitoring import look_at
    from cppo_lab.cli.training import planned
    from cppo_lab.sweep import status
    from cppo_lab.tracking.ui import free_port, served_at

    reporting.require_every(options)
    look = look_at(planned(options)[0])

    def now() -> tuple[str, bool]:
        runs = look()
        lines = html.escape(f"{status.totals(runs)}\n\n{status.table(runs)}")
        goes_on = any(run.state not in schema.FINISHED for run in runs)
        return f'<section id="now"><h2>Runs now</h2>\n<pre>{lines}</pre>\n</section>', goes_on

    interrupt_on_termination()
    with tempfile.TemporaryDirectory(prefix="cppo-") as place, contextlib.suppress(KeyboardInterrupt):
        options.out = Path(place, Path(options.sweep).stem)
        handler = partial(Page, directory=str(options.out), now=now, every=options.every)
        port = free_port(HOST, options.port)
        with ThreadingHTTPServer((HOST, port), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = served_at(HOST, port)
            answer(options, {"links": [{"name": options.sweep, "url": address}]}, address)
            if options.json:
                options.answer_now()
            say("Ctrl-C ends it.")
            for _ in reporting.watch_report(options, patient=True):
                pass
            while True:
                reporting.pause(options.every)
    return Exit.DONE


def dash_arguments(command: CommandParser) -> None:
    given = {"source": "runs", "partial": True, "palette": "paper", "figures": None, "study": None}
    command.set_defaults(command=dash, log=False, **given)  # of `cppo report`
    add_sweep(command)
    command.add_argument(
        "--every", type=float, default=30.0, metavar="SECONDS", help="time between updates (default: 30)"
    )
    command.add_argument("--port", type=int, metavar="N", help="port (default: the first free one from 5000)")
