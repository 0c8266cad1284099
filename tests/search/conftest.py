"""What the tests of searches fork their processes from ends with the session."""

from collections.abc import Iterator

import pytest

from tests.servers import forked


@pytest.fixture(scope="session", autouse=True)
def _fork_server_ends() -> Iterator[None]:
    yield
    forked.stop()
