"""What the tests of searches fork their processes from ends with the session."""

from tests.servers.conftest import fork_server_ends

__all__ = ["fork_server_ends"]
