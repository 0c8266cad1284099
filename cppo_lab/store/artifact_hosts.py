"""Keeps the tracking server's password from other hosts.

Any writer of a store can give a run artifacts at an address of another host. MLflow's client would send that host the
user name and password, or the token, of the tracking server.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories

from cppo_lab.errors import UserError
from cppo_lab.redaction import redacted

_SENDS_PASSWORD = ("http", "https", "mlflow-artifacts")  # the schemes whose requests MLflow authenticates
# Anything else, such as a backslash or a user name, is read as different hosts by different libraries.
_PLAIN = re.compile(r"([a-z-]+)://([\w.-]+|\[[\da-f:]+\])(?::(\d{1,5}))?(?:/.*)?", re.ASCII | re.IGNORECASE)
_NO_HOST = re.compile(r"mlflow-artifacts:(?:/|///)?(?:[^/\s\\].*)?")
_PORTS = {"http": 80, "https": 443}


@cache
def guard() -> None:
    """Make every client of MLflow in this process refuse artifacts on other servers."""
    repositories: Any = get_registered_artifact_repositories()  # the registry itself
    for scheme in _SENDS_PASSWORD:
        repositories[scheme] = partial(_checked, repositories[scheme])


def require_tracking_host(artifact_uri: str, tracking_uri: str) -> None:
    """Raise UserError for artifacts on another server than the tracking server; other ports are other servers."""
    if _NO_HOST.fullmatch(artifact_uri):
        return  # MLflow takes the tracking server
    ours, theirs = urlsplit(tracking_uri), _PLAIN.fullmatch(artifact_uri)
    scheme, host, port = theirs.groups() if theirs else ("", "", None)
    scheme = ours.scheme if scheme == "mlflow-artifacts" else scheme.lower()
    server = (scheme, host.strip("[]").lower(), int(port) if port else _PORTS.get(scheme))
    if server != (ours.scheme, ours.hostname, ours.port or _PORTS.get(ours.scheme)):
        raise UserError(
            f"artifacts at {redacted(artifact_uri)!r} are not on the tracking server {redacted(tracking_uri)}: they "
            "are neither read nor written, since MLflow would send its password there; if you trust that server, "
            "set MLFLOW_TRACKING_URI to it"
        )


def _checked(
    make: Callable[..., Any], artifact_uri: str, tracking_uri: str | None = None, **named: Any
) -> Any:
    if tracking_uri is not None:  # None: a call by the user's own code, with addresses of their own
        require_tracking_host(artifact_uri, tracking_uri)
    return make(artifact_uri, tracking_uri=tracking_uri, **named)
