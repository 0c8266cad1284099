"""A proxy on loopback that forwards requests to a server, and can simulate a faulty server."""

import http.client
import threading
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dev.ceiling import CEILING_SECONDS

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade"})
PAGE = b"<html><body>Not the server that you are looking for</body></html>"  # as gateways answer


@dataclass(frozen=True)
class Fault:
    """What happens to a request.

    `hold`: it waits until the fault is removed. Then it is answered with `status` or, if that is 0, forwarded to the
    server. `cut`: the server handles the request, but the connection breaks and the response is lost. The fault applies
    to requests whose path contains `path` (empty: all), `times` times (None: until it is removed).
    """

    status: int = 0
    hold: bool = False
    cut: bool = False
    path: str = ""
    times: int | None = None


class FaultyProxy:
    """A proxy in front of the server at `port`. Used as a context manager; clients use `uri`."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.requests: Counter[str] = Counter()  # by path
        self.faults: Counter[Fault] = Counter()  # how often each has happened
        self._fault: Fault | None = None
        self._taken_away = threading.Event()  # of the present fault
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def uri(self) -> str:
        """The tracking URI."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, fault: Fault | None) -> None:
        """Apply `fault` from now on; None: forward everything."""
        with self._lock:
            self._taken_away.set()
            self._fault, self._taken_away = fault, threading.Event()

    def happening(self, path: str) -> Fault | None:
        """The fault for a request for `path`, which is counted. Returns when the request may be answered."""
        with self._lock:
            self.requests[path.partition("?")[0]] += 1
            fault, taken_away = self._fault, self._taken_away
            if fault is None or fault.path not in path:
                return None
            if fault.times is not None and self.faults[fault] >= fault.times:
                return None
            self.faults[fault] += 1
        if fault.hold:
            taken_away.wait()
        return fault

    def __enter__(self) -> "FaultyProxy":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.answer(None)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client may keep its connection open longer than the proxy lives
    proxy: FaultyProxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect during a response."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.proxy.happening(self.path)
        if fault is not None and fault.status:
            self._reply(fault.status, [("Content-Type", "text/html")], PAGE)
            return
        upstream = http.client.HTTPConnection(
            "127.0.0.1", self.server.proxy.upstream, timeout=CEILING_SECONDS
        )
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_BY_HOP}
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._reply(502, [], b"no answer from the server")
            return
        finally:
            upstream.close()
        if fault is not None and fault.cut:
            self.close_connection = True
            return
        self._reply(answer.status, answer.getheaders(), content)

    def _reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for key, value in headers:
            if key.lower() not in HOP_BY_HOP:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _pass_on
