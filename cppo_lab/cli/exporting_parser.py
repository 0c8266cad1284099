"""What `cppo export` understands: `export model RUN`, or `export RUN` for short, and `export metrics SWEEP`."""

from collections.abc import Sequence
from pathlib import Path

from cppo_lab.cli import exporting
from cppo_lab.cli.command_parser import CommandParser, Commands, add_sweep

FORMATS = ("parquet", "csv", "tensorboard")  # those of export.metrics, which imports pandas
_MODEL, _METRICS = "model", "metrics"
_TEXT = "export a run's best checkpoint in Hugging Face format, with a model card"


def with_action(arguments: Sequence[str]) -> Sequence[str]:
    """`export RUN ...` as `export model RUN ...`; every other command line as it is. No run id is a word."""
    if len(arguments) < 2 or arguments[0] != "export" or arguments[1] in (_MODEL, _METRICS, "-h", "--help"):
        return arguments
    return ["export", _MODEL, *arguments[1:]]


def add_export(commands: Commands) -> None:
    """The commands that write results for other programs."""
    export = commands.add_parser(
        "export",
        help="export a run's best checkpoint in Hugging Face format, or the metrics of a sweep as tables",
        description="ACTION may be left out: `cppo export RUN --out DIR` means `cppo export model RUN --out DIR`.",
    )
    actions = export.add_subparsers(metavar="ACTION", required=True, parser_class=CommandParser)
    _add_model(actions)
    _add_metrics(actions)


def _add_model(actions: Commands) -> None:
    model = actions.add_parser(
        _MODEL,
        prog="cppo export",
        help=_TEXT,
        description=f"{_TEXT[0].upper()}{_TEXT[1:]}. Load it with from_pretrained. verl's shards are "
        "merged and keep their precision; the embedded core's transformer becomes a Qwen3. "
        "Progress goes to standard error, the folder's path to standard output. See docs/verl.md.",
    )
    model.set_defaults(command=exporting.model)
    model.add_argument("run", metavar="RUN", help="run id, or a prefix of it (at least 4 digits)")
    model.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="output folder, new or empty; created atomically",
    )


def _add_metrics(actions: Commands) -> None:
    metrics = add_sweep(
        actions,
        _METRICS,
        exporting.metrics,
        "export the metrics that the runs of a sweep have logged (docs/notebook.md)",
    )
    metrics.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="parquet (default) and csv write the tables `runs`, `history` and `outcomes`; tensorboard writes "
        "a folder of event files",
    )
    metrics.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="output folder, new or empty; created atomically",
    )
    metrics.add_argument("--force", action="store_true", help="replace an earlier export of metrics in DIR")
    metrics.add_argument(
        "--metrics",
        metavar="PATTERN,...",
        help="export only these metrics, for example 'val/*,train/reward' (default: all)",
    )
    metrics.add_argument(
        "--from",
        dest="source",
        choices=["runs", "paper"],
        default="runs",
        help="export your runs (default) or the paper's curves (main, study and the ablations; without overrides)",
    )
