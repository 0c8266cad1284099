"""MLflow's page: the saved view that our links open, and MLflow's server for a store.

MLflow keeps a saved view of an experiment's runs in the experiment's tag `mlflow.sharedViewState.<key>` and opens it by
`?viewStateShareKey=<key>`. The format is that of MLflow 3.17's page; it is not documented, so tests/browser opens
it in a real one.
"""

import base64
import contextlib
import errno
import ipaddress
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any
from urllib.parse import urlencode

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.files import redacted
from cppo_lab.plugins import install_extra
from cppo_lab.tracking import address
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import newest_runs

VIEW = "cppo-runs"
TAG_VIEW = "mlflow.sharedViewState." + VIEW
# MLflow's tag: which of its pages an experiment opens on.
_KIND, _TRAINING = "mlflow.experimentKind", "custom_model_development"
_NEWEST = 500  # the view is built from these runs
_CHARTS = 7  # of the mean and single benchmarks. The value of an experiment's tag has at most 5,000 bytes
_COLUMNS = (schema.TAG_STATUS, schema.TAG_RULE, schema.TAG_MODEL, schema.TAG_SEED, schema.TAG_STEP)
PORTS = range(5000, 5100)  # tried in turn
_END_SECONDS = 10.0
_SETTINGS = {
    # Switch off the workers for language-model jobs (seven processes) and usage reports.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # The folder that uvicorn puts first on Python's path; its default is the working folder.
    "UVICORN_APP_DIR": os.devnull,
    "UVICORN_LOG_LEVEL": "warning",  # so that the last line is the reason why a server ended
}


def page(experiment: Experiment) -> str:
    """The path of an experiment's runs on the server, in the saved view if there is one."""
    # MLflow 3 opens on its pages for language-model traces unless a tag says that these are training runs.
    query = {"workflowType": "machine_learning"}
    if TAG_VIEW in experiment.tags:
        query |= {"compareRunsMode": "CHART", "viewStateShareKey": VIEW}
    return f"/#/experiments/{experiment.experiment_id}/runs?{urlencode(query)}"


def where_to_look(uri: str, experiment: str) -> str:
    """How to open the runs of `experiment` in MLflow's page: its address, or the command that serves it."""
    if uri.startswith("http"):
        stored = open_client(uri).get_experiment_by_name(experiment)
        return redacted(uri).rstrip("/") + (page(stored) if stored else "")
    if uri == address.tracking_uri():
        return "cppo ui"
    return f"MLFLOW_TRACKING_URI={shlex.quote(redacted(uri))} cppo ui"


def comparison(experiments: Sequence[Experiment]) -> str:
    """The path on the server that shows the runs of several experiments in the same charts."""
    ids = json.dumps([experiment.experiment_id for experiment in experiments])
    query = {
        "experiments": ids,
        "workflowType": "machine_learning",
        "compareRunsMode": "CHART",
        "searchFilter": f"tags.`{schema.TAG_RUN_ID}` LIKE '%'",
        "orderByKey": f"metrics.`{schema.validation_metric(schema.MEAN)}`",
        "orderByAsc": "false",
    }
    return f"/#/compare-experiments/s?{urlencode(query)}"


def save_view(client: MlflowClient, experiment_id: str) -> None:
    """Write the view of an experiment's training runs, unless it is there and up to date."""
    experiment = client.get_experiment(experiment_id)
    runs = itertools.islice(newest_runs(client, experiment.name), _NEWEST)
    state = json.dumps(_state(_validation_metrics(runs))).encode()
    if _KIND not in experiment.tags:
        client.set_experiment_tag(experiment_id, _KIND, _TRAINING)
    text = f"deflate;{base64.b64encode(zlib.compress(state, 9)).decode()}"
    if text not in experiment.tags.get(TAG_VIEW, ""):
        now = int(time.time() * 1000)
        view = {"name": "Training runs", "createdAt": now, "updatedAt": now, "state": text}
        client.set_experiment_tag(experiment_id, TAG_VIEW, json.dumps(view))


def _validation_metrics(runs: Iterable[Run]) -> list[str]:
    """The validation metrics of runs, the mean first, then those of most runs; the schema's if there are none yet."""
    count = Counter(
        name for run in runs for name in run.data.metrics if schema.parse_validation_metric(name) is not None
    )
    names = sorted(count, key=lambda name: (f"/{schema.MEAN}/" not in name, -count[name], name))
    return names or [schema.validation_metric(schema.MEAN)]


def _state(validation: Sequence[str]) -> dict[str, Any]:
    """The state of the page: filter, columns, and a first section with charts of the validation metrics. The page adds
    sections of its own for all other metrics.
    """
    columns = ["attributes.`Created`", "attributes.`Duration`", *(f"tags.`{tag}`" for tag in _COLUMNS)]
    section = {"uuid": f"{VIEW}-0", "name": "Validation", "display": True, "isReordered": True, "columns": 2}
    return {
        "searchFilter": f"tags.`{schema.TAG_RUN_ID}` LIKE '%'",
        # Best first. Sorted by time, the page would fold the runs under their parents, and draw no curve of them.
        "orderByKey": f"metrics.`{validation[0]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [*columns, f"metrics.`{validation[0]}`", "metrics.`train/reward`"],
        "runsHiddenMode": "FIRST_20_RUNS",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,  # else the page sorts the sections by name
        "compareRunSections": [section],
        "compareRunCharts": [_line_chart(metric) for metric in validation[:_CHARTS]],
    }


def _line_chart(metric: str) -> dict[str, Any]:
    """A chart of one metric by training step, with every key that the page's charts have."""
    return {
        "uuid": f"{VIEW}-{metric}",
        "type": "LINE",
        "metricSectionId": f"{VIEW}-0",
        "deleted": False,
        "isGenerated": False,
        "displayName": metric,
        "runsCountToCompare": 20,
        "metricKey": metric,
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
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
    """`wanted`, or the first free one of PORTS.

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


def served_at(host: str, port: int) -> str:
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
    words = ["-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
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
