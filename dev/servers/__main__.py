"""The command line of the development servers: `python3 -m dev.servers install`."""

import argparse

from dev.errors import run
from dev.servers.postgres import install


def main(arguments: list[str] | None = None) -> int:
    """Installs PostgreSQL, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.servers", description="A real PostgreSQL, for tests."
    )
    parser.add_argument("command", choices=["install"], help="apt-get what is needed")
    parser.parse_args(arguments)
    print("installed" if install() else "nothing to install")
    return 0


if __name__ == "__main__":
    run("dev.servers", main)
