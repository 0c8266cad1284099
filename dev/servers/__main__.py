"""The command line of the development servers: `python3 -m dev.servers install`."""

import argparse
import sys

from dev.errors import reported
from dev.servers.postgres import install


def main(arguments: list[str] | None = None) -> int:
    """Installs PostgreSQL, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.servers", description="A real PostgreSQL, for tests."
    )
    parser.add_argument("command", choices=["install"], help="apt-get what is needed")
    parser.parse_args(arguments)

    def work() -> int:
        print("installed" if install() else "nothing to install")
        return 0

    return reported("dev.servers", work)


if __name__ == "__main__":
    sys.exit(main())
