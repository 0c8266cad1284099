"""The command line of the development PostgreSQL: `python3 -m dev.servers COMMAND`."""

import argparse
import sys
from pathlib import Path

from dev.errors import DevError
from dev.servers.postgres import Postgres, default_folder, install


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    options = _parser().parse_args(arguments)
    server = Postgres(options.folder or default_folder(options.name))
    try:
        return _run(options.command, server)
    except DevError as error:
        print(f"dev.servers: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.servers", description="A real PostgreSQL on this machine."
    )
    parser.add_argument("--name", default="default", help="several servers can run, each under a name")
    parser.add_argument(
        "--folder", type=Path, help="where to keep the server (default: /tmp/cppo-postgres-UID/NAME)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="apt-get what is needed")
    commands.add_parser("start", help="start, and print the URL; nothing to do if it runs")
    commands.add_parser("stop", help="shut it down cleanly; its data stays")
    commands.add_parser("kill", help="end it as a crash would; its data stays")
    commands.add_parser("status", help="whether it runs, and its URL")
    commands.add_parser("remove", help="stop it and remove its data")
    return parser


def _run(command: str, server: Postgres) -> int:
    match command:
        case "install":
            print("installed" if install() else "nothing to install")
        case "start":
            server.start()
            print(f"export MLFLOW_TRACKING_URI={server.url()}")
        case "stop" | "kill":
            ended = server.stop() if command == "stop" else server.kill()
            print("stopped" if ended else "nothing was running")
        case "status":
            running = server.running()
            print(server.url() if running else f"nothing runs in {server.folder}")
            return 0 if running else 1
        case "remove":
            server.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
