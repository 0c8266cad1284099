"""The arguments of `cppo samples` and `cppo replay`."""

import argparse

from cppo_lab.cli import answers
from cppo_lab.cli.command_parser import RUN, Commands


def add_answers(commands: Commands) -> None:
    """The commands on the answers that a run has kept."""
    samples = commands.add_parser("samples", help="print prompts and responses that a run has kept")
    samples.set_defaults(command=answers.samples)
    _add_run(samples)
    samples.add_argument("--problem", metavar="ID", help="only this problem (id or prefix)")
    samples.add_argument("--wrong", action="store_true", help="only wrong responses")
    replay = commands.add_parser(
        "replay", help="apply another rule's mask to kept training tokens, without training"
    )
    replay.set_defaults(command=answers.replay)
    _add_run(replay)
    replay.add_argument("--rule", metavar="NAME", help="rule to apply (default: the run's own)")
    replay.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="constants of the rule: delta=0.1; divergence=binary_kl for another D_t of the sampled tokens",
    )


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help=RUN)
    command.add_argument("--step", type=int, metavar="S", help="validated step (default: the newest)")
