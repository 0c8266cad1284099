"""The command line of the development cluster: `python3 -m dev.slurm COMMAND`."""

import argparse
import os
import shlex
from pathlib import Path

from dev.errors import run
from dev.slurm import starting
from dev.slurm.cluster import Cluster, default_folder
from dev.slurm.settings import Settings


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    options = _parser().parse_args(arguments)
    return _run(options, Cluster(options.folder or default_folder(options.name)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m dev.slurm", description="A real Slurm on this machine.")
    parser.add_argument("--name", default="default", help="several clusters can run, each under a name")
    parser.add_argument(
        "--folder", type=Path, help="where to keep the cluster (default: /tmp/cppo-slurm-UID/NAME)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("install", "apt-get what is needed"), ("start", "start; nothing to do if it runs")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--accounting", action=argparse.BooleanOptionalAction, default=True,
                             help="slurmdbd and MariaDB, so that sacct works (default: yes)")  # fmt: skip
    for name in ("nodes", "cpus", "gpus", "memory"):
        text = {"nodes": "", "memory": "MB per node, "}.get(name, "per node, ") + "default: %(default)s"
        command.add_argument(f"--{name}", type=int, default=getattr(Settings, name), help=text)
    command.add_argument("--private-network", action="store_true",
                         help="a network of its own, without a way out: reach it with `run`")  # fmt: skip
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", type=_pair,
                         help="a line of slurm.conf, such as MinJobAge=10")  # fmt: skip
    commands.add_parser("stop", help="end all daemons and jobs")
    commands.add_parser("status", help="daemons, nodes and jobs")
    commands.add_parser("restart-controller", help="stop slurmctld and start it again; jobs go on")
    command = commands.add_parser("fail-node", help="kill a node and its jobs, as a crash would")
    command.add_argument("node")
    command.add_argument(
        "--unnoticed", action="store_true", help="let slurmctld find out after SlurmdTimeout"
    )
    commands.add_parser("resume-node", help="bring a failed node back").add_argument("node")
    command = commands.add_parser("run", help="run a command (default: a shell) that sees the cluster")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _run(options: argparse.Namespace, cluster: Cluster) -> int:
    match options.command:
        case "install":
            print("installed" if starting.install(options.accounting) else "nothing to install")
        case "start":
            settings = Settings(
                nodes=options.nodes, cpus=options.cpus, gpus=options.gpus, memory=options.memory,
                accounting=options.accounting, private_network=options.private_network, extra=dict(options.set),
            )  # fmt: skip
            new = starting.start(cluster, settings)
            print(f"{settings.nodes} nodes {'are ready' if new else 'were running already'}; to use them:")
            print(_how_to_use(options, cluster, settings))
        case "stop":
            print("stopped" if cluster.stop() else "nothing was running")
        case "status":
            return _status(options, cluster)
        case "restart-controller":
            cluster.restart_controller()
        case "fail-node":
            cluster.fail_node(options.node, noticed=not options.unnoticed)
        case "resume-node":
            cluster.resume_node(options.node)
        case "run":
            words = options.words[1:] if options.words[:1] == ["--"] else options.words
            command = cluster.inside(words or [os.environ.get("SHELL", "/bin/sh")])
            os.execvpe(command[0], command, cluster.env())
    return 0


def _how_to_use(options: argparse.Namespace, cluster: Cluster, settings: Settings) -> str:
    if not settings.private_network:
        return f"export SLURM_CONF={shlex.quote(str(cluster.conf))}"
    name = ["--folder", str(options.folder)] if options.folder else ["--name", options.name]
    return shlex.join(["python3", "-m", "dev.slurm", *name, "run", "--"]) + " COMMAND"


def _status(options: argparse.Namespace, cluster: Cluster) -> int:
    running = cluster.running()
    if not running:
        print(f"nothing runs in {cluster.folder}")
        return 1
    settings = cluster.settings()
    if dead := sorted(set(settings.daemons()) - set(running)):
        print(f"not running: {', '.join(dead)}")
    print(_how_to_use(options, cluster, settings))
    print(cluster.call("sinfo", "-N", "-p", "debug", "-o", "%N %.10T %.5c %.8m %G"), end="")
    print(cluster.call("squeue", "-a"), end="")
    return 0


if __name__ == "__main__":
    run("dev.slurm", main)
