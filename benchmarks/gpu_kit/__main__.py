"""`python -m benchmarks.gpu_kit run [--device cuda|cpu] [--out DIR] [--minutes 10]`, and `gather` before it.

gather   makes build/gpu_kit.tar.gz: this source and the few packages that a bare machine lacks. Needs a package index.
run      measures, on a machine without a network; build/gpu_kit/result has gpu_kit.json, gpu_kit.txt and gpu_kit.log.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu_kit import running
from benchmarks.gpu_kit.places import FOLDER, ROOT


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_kit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure on this machine")
    run.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny sizes, to try the kit"
    )
    run.add_argument("--out", type=Path, default=FOLDER / "result", help="folder of the result")
    run.add_argument("--minutes", type=float, default=10.0, help="for all parts together")
    gather = commands.add_parser("gather", help="collect what a bare machine lacks")
    gather.add_argument("--out", type=Path, default=ROOT / "build", help="folder of gpu_kit.tar.gz")
    part = commands.add_parser("part", help="one part in this process; `run` does this")
    part.add_argument("name", choices=[part.name for part in running.PARTS])
    part.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    part.add_argument("--file", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.command == "run":
        return _run(options)
    if options.command == "gather":
        from benchmarks.gpu_kit.gather import GatherFailed, gather_kit

        try:
            gather_kit(options.out)
        except GatherFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0
    return _part(options)


def _run(options: argparse.Namespace) -> int:
    ran = running.run(options.device, options.out, options.minutes)
    print((options.out / running.TABLE).read_text(encoding="utf-8"))
    return 0 if all(part.state == running.DONE for part in ran.values()) else 1


def _part(options: argparse.Namespace) -> int:
    # Before the machine's own packages: what was gathered fits together. What is measured, torch, is not among it.
    if site := os.environ.get("CPPO_GPU_KIT_SITE"):
        sys.path.insert(0, site)
    import torch

    from benchmarks.gpu_kit.measures import MEASURES
    from benchmarks.gpu_kit.record import Record

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} sees no GPU: --device cpu tries the kit without one", file=sys.stderr
        )
        return 2
    record = Record(options.name, options.file)
    record.on(options.device)
    MEASURES[options.name](options.device, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
