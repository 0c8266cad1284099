"""Creating things in a SQLite store: one process at a time, and not interrupted in the middle of a transaction.

Other writes need no lock, since MLflow waits for another writer of the file. A server handles all of this itself.
"""

import contextlib
from collections.abc import Iterator

from cppo_lab.signals import deferred
from cppo_lab.store import address


@contextlib.contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Let only one thread of one process at a time enter for a SQLite store, and defer signals. Must not be nested.

    For looking something up and creating it if it is missing: an experiment, a parent, a registration.
    """
    database = address.sqlite_file(uri)
    if database is None or not database.parent.is_dir():
        yield
        return
    with address.locked(database), deferred():
        yield


def deferred_for(uri: str) -> contextlib.AbstractContextManager[None]:
    """`signals.deferred` for a SQLite store. Not for a server, which may be unreachable: a termination request must not
    wait for it.

    For calls whose interruption is handled by code that writes to the store, which an interrupted call keeps locked.
    """
    return contextlib.nullcontext() if address.sqlite_file(uri) is None else deferred()
