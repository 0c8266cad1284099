"""`python -m benchmarks.gpu_kit run [--device cuda|cpu] [--out DIR] [--minutes 10]`, and `gather` before it.

gather   makes build/gpu_kit.tar.gz: this source and the few packages that a bare machine lacks. Needs a package index.
run      measures, on a machine without a network; build/gpu_kit/result has gpu_kit.json, gpu_kit.txt and gpu_kit.log.
         Each part has a process of its own and a limit of time; the result is on disk after each of them.
"""

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Figure, limited
from benchmarks.gpu_kit.gather import FOLDER, SITE, GatherFailed, commit, gather_kit

CPU_SLACK = 5.0  # the limits are a GPU machine's; a CPU on which the kit is tried may have other work
LEAST_SECONDS = 20.0  # with less a part is not begun
RESULT, TABLE, LOG = "gpu_kit.json", "gpu_kit.txt", "gpu_kit.log"
DONE, FAILED, OVER, SKIPPED = "done", "failed", "over its limit", "skipped"
# Part, a module with a function `measure` -> the seconds that it may take at most.
PARTS = {"parity": 120.0, "logits": 90.0, "update": 180.0, "embedded": 120.0}


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_kit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure on this machine")
    run.add_argument("--out", type=Path, default=FOLDER / "result", help="folder of the result")
    run.add_argument("--minutes", type=float, default=10.0, help="for all parts together")
    part = commands.add_parser("part", help="one part in this process; `run` does this")
    part.add_argument("name", choices=PARTS)
    part.add_argument("--file", type=Path, required=True)
    for command in (run, part):
        command.add_argument(
            "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny, to try the kit"
        )
    gather = commands.add_parser("gather", help="collect what a bare machine lacks")
    gather.add_argument("--out", type=Path, default=ROOT / "build", help="folder of gpu_kit.tar.gz")
    options = parser.parse_args(arguments)
    match options.command:
        case "run":
            ran = run_parts(options.device, options.out, options.minutes)
            print((options.out / TABLE).read_text(encoding="utf-8"))
            return 0 if all(part["state"] == DONE for part in ran.values()) else 1
        case "part":
            return measure(options.name, options.device, options.file)
        case _:
            try:
                gather_kit(options.out)
            except GatherFailed as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
            return 0


def measure(name: str, device: str, file: Path) -> int:
    """One part in this process."""
    # Before the machine's own packages: what was gathered fits together. What is measured, torch, is not among it.
    if site := os.environ.get("CPPO_GPU_KIT_SITE"):
        sys.path.insert(0, site)
    import torch

    from benchmarks.gpu_kit.record import Record

    if device == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} sees no GPU: --device cpu tries the kit without one", file=sys.stderr
        )
        return 2
    part = importlib.import_module(f"benchmarks.gpu_kit.{name}")  # noqa: TID251  one of PARTS
    part.measure(device, Record(file, device))
    return 0


def run_parts(device: str, out: Path, minutes: float) -> dict[str, dict[str, Any]]:
    """Run the parts for at most `minutes` together, and write RESULT, TABLE and LOG in `out`."""
    deadline = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    (out / LOG).write_text("", encoding="utf-8")
    ran: dict[str, dict[str, Any]] = {}
    for name in PARTS:
        print(f"{name} ... ", end="", flush=True)
        started = time.monotonic()
        ran[name] = part = run_part(name, device, out, deadline - started)
        part["seconds"] = time.monotonic() - started
        whole = {"kit": "cppo-lab GPU kit", "commit": commit(), "asked_for": device, "parts": ran}
        (out / RESULT).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        (out / TABLE).write_text(table(whole), encoding="utf-8")
        print(f"{part['state']}, {part['seconds']:.0f} s {part['why']}", flush=True)
    return ran


def run_part(name: str, device: str, out: Path, left: float) -> dict[str, Any]:
    """Run one part with `left` seconds for all that remain. Never raises for what it does."""
    if left < LEAST_SECONDS:
        return {"state": SKIPPED, "why": f"{max(left, 0):.0f} s were left, and it needs {LEAST_SECONDS:.0f}"}
    limit = min(PARTS[name] * (1.0 if device == "cuda" else CPU_SLACK), left)
    file, log = out / f"{name}.json", out / LOG
    file.unlink(missing_ok=True)
    with log.open("a", encoding="utf-8") as output:
        print(f"== {name}", file=output)
    begin = log.stat().st_size
    words = [
        sys.executable,
        "-m",
        "benchmarks.gpu_kit",
        "part",
        name,
        "--device",
        device,
        "--file",
        file.resolve(),
    ]
    code = limited(list(map(str, words)), limit, log, 0.0, cwd=ROOT, env=environment())
    said = log.read_bytes()[begin:].decode(errors="replace").split("\n")
    said = [line.strip() for line in said if line.strip()] or ["it said nothing"]
    measured = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for path in (file, file.with_suffix(".part")):
        path.unlink(missing_ok=True)
    state, why = DONE, ""
    if code is None:
        state, why = OVER, f"ended after {limit:.0f} s; figures from before are kept"
    elif code:
        state, why = FAILED, f"exit code {code}: {said[-1]:.300}"
    elif not measured.get("figures"):
        state, why = FAILED, "it measured nothing"
    return {"state": state, "why": why, **measured}


def environment() -> dict[str, str]:
    """Of a part: where the gathered packages are, and settings that keep it from the network and from fragmentation."""
    defaults = {
        "CPPO_GPU_KIT_SITE": str(SITE),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    return {**defaults, **os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def table(whole: Mapping[str, Any]) -> str:
    """Every figure on a line of its own, below the machine that it is from."""
    lines = [f"{whole['kit']}, commit {whole['commit']}"]
    for name, part in whole["parts"].items():
        why = f": {part['why']}" if part["why"] else ""
        lines += ["", f"{name}: {part['state']}, {part['seconds']:.1f} s{why}"]
        if "machine" in part:
            lines.append("  " + ", ".join(f"{key} {value}" for key, value in part["machine"].items()))
        lines += [f"  {note}" for note in part.get("notes", [])]
        lines += [
            f"    {key:58s} {_shown(Figure(**fields))}" for key, fields in part.get("figures", {}).items()
        ]
    return "\n".join(lines) + "\n"


def _shown(figure: Figure) -> str:
    measured = figure.value is not None
    text = f"{figure.value:g} {figure.unit}".rstrip() if measured else f"not measured: {figure.absent}"
    if figure.at_most is None:
        return text
    verdict = {True: ", met", False: ", NOT MET", None: ""}[figure.met]
    return f"{text} (at most {figure.at_most:g}{verdict})"


if __name__ == "__main__":
    sys.exit(main())
