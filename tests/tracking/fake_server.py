"""A tracking server with one run, which answers as a test wants it to."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cppo_lab import schema

RUN = "0123456789abcdef0123456789abcdef"
EXPERIMENT = {"experiment_id": "1", "name": "cppo-mini", "lifecycle_stage": "active"}
INFO = {
    "run_id": RUN,
    "experiment_id": "1",
    "status": "FINISHED",
    "lifecycle_stage": "active",
    "start_time": 1,
}


class FakeServer(ThreadingHTTPServer):
    """`seen`: path and headers of every request; `received`: its body. `artifact_uri`: the run's. `redirect`: where
    requests of artifacts are sent. `endpoint`: which answers with `status`, `headers` and `answer`. `slow`: it sends a
    byte now and then.
    """

    daemon_threads = True
    artifact_uri, redirect, endpoint, answer, slow = "", "", "nothing", b"", False
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.received: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.ended = threading.Event()

    @property
    def netloc(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def uri(self) -> str:
        return f"http://{self.netloc}"

    @property
    def passwords(self) -> set[str]:
        return {headers["Authorization"] for _, headers in self.seen if "Authorization" in headers}

    def respond(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if self.redirect and "mlflow-artifacts" in path:
            return 307, {"Location": f"{self.redirect}{path}"}, b""
        if self.endpoint in path:
            return self.status, self.headers, self.answer
        tags = [{"key": schema.TAG_STATUS, "value": schema.DONE}]
        metrics = [{"key": "m", "value": 1.0, "timestamp": 1, "step": 1}]
        run = {"info": INFO | {"artifact_uri": self.artifact_uri}, "data": {"tags": tags, "metrics": metrics}}
        bodies: dict[str, dict[str, Any]] = {
            "/experiments/search": {"experiments": [EXPERIMENT]},
            "/experiments/get-by-name": {"experiment": EXPERIMENT},
            "/runs/search": {"runs": [run]},
            "/runs/get": {"run": run},
        }
        right = (body for end, body in bodies.items() if end in path)
        return 200, {"Content-Type": "application/json"}, json.dumps(next(right, {})).encode()


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        self.server.received.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        self.server.seen.append((self.path, dict(self.headers)))
        if self.server.slow:
            with suppress(OSError):
                while not self.server.ended.wait(0.05):
                    self.wfile.write(b"H")
            return
        status, headers, body = self.server.respond(self.path)
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        # It notices its end at the next poll.
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield server
        server.ended.set()
        server.shutdown()
