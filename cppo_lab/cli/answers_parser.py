"""The arguments of `cppo samples` and `cppo replay`."""

import argparse

from cppo_lab.cli import answers
from cppo_lab.cli.command_parser import RUN, Commands


def add_answers(commands: Commands) -> None:
    """The commands on the answers that a run has kept."""
    samples = commands.add_parser("samples", help="print the prompts and responses that a run has stored")
    samples.set_defaults(command=answers.samples)
    _add_run(samples)
    samples.add_argument("--problem", metavar="ID", help="print only this problem (id or prefix)")
    samples.add_argument("--wrong", action="store_true", help="print only wrong responses")
    replay = commands.add_parser(
        "replay",
        help="apply another rule's mask to the training tokens that a run has stored, without training",
    )
    replay.set_defaults(command=answers.replay)
    _add_run(replay)
    replay.add_argument("--rule", metavar="NAME", help="rule to apply (default: the run's own)")
    replay.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="constants of the rule (delta=0.1), or divergence=binary_kl to use another D_t of the sampled tokens",
    )


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help=RUN)
    command.add_argument(
        "--step", type=int, metavar="S", help="a step with a validation (default: the newest)"
    )
