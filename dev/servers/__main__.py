"""The command line of the development servers: `python3 -m dev.servers install`."""

import sys

from dev.errors import DevError, run
from dev.servers.postgres import install


def main() -> int:
    """Installs PostgreSQL, and returns the exit status."""
    if sys.argv[1:] != ["install"]:
        raise DevError("say install: apt-get what is needed of PostgreSQL")
    print("installed" if install() else "nothing to install")
    return 0


if __name__ == "__main__":
    run("dev.servers", main)
