"""Running the parts: each in a separate process with a limit of time, the result on disk after each of them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_kit.places import ROOT, SITE, commit

CPU_SLACK = 5.0  # the limits are a GPU machine's; a CPU on which the kit is tried may have other work
RESULT, TABLE, LOG = "gpu_kit.json", "gpu_kit.txt", "gpu_kit.log"
DONE, FAILED, OVER, SKIPPED = "done", "failed", "over its limit", "skipped"


@dataclass(frozen=True)
class Part:
    """One part: `limit` seconds at most; it is not begun with less than `least` seconds left."""

    name: str
    about: str
    limit: float
    least: float = 20.0
    words: tuple[str, ...] = ()  # the command; empty: this package's own part of that name


PARTS = (
    Part("parity", "rules and divergences against float64 on the CPU", 120.0),
    Part("logits", "Top-K divergence from logits over one read of them, eager", 90.0),
    Part("compiled", "the same through torch.compile", 120.0),
    Part("update", "one FSDP2 update of Qwen3-1.7B's shape", 180.0),
    Part("embedded", "the embedded core against the CPU", 120.0),
)


@dataclass
class Ran:
    """How a part went: `state` is DONE, FAILED, OVER or SKIPPED, `why` one line unless it is DONE."""

    state: str
    why: str
    seconds: float
    machine: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)


def run(device: str, out: Path, minutes: float, parts: Sequence[Part] = PARTS) -> dict[str, Ran]:
    """Run the parts for at most `minutes` together, and write RESULT, TABLE and LOG in `out`."""
    deadline = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    (out / LOG).write_text("", encoding="utf-8")
    ran: dict[str, Ran] = {}
    for part in parts:
        print(f"{part.name}: {part.about} ... ", end="", flush=True)
        ran[part.name] = one(part, device, out, deadline - time.monotonic())
        write(out, device, ran)
        print(f"{ran[part.name].state}, {ran[part.name].seconds:.0f} s {ran[part.name].why}", flush=True)
    return ran


def one(part: Part, device: str, out: Path, left: float) -> Ran:
    """Run one part with `left` seconds for all that is remaining. Never raises for what it does."""
    if left < part.least:
        return Ran(SKIPPED, f"{max(left, 0):.0f} s were left, and it needs {part.least:.0f}", 0.0)
    own = part.limit * (1.0 if device == "cuda" else CPU_SLACK)
    limit, found = min(own, left), out / f"{part.name}.json"
    found.unlink(missing_ok=True)
    words = part.words or (sys.executable, "-m", "benchmarks.gpu_kit", "part", part.name)
    words = (*words, "--device", device, "--file", str(found.resolve()))
    started = time.monotonic()
    with (out / LOG).open("a+", encoding="utf-8") as log:
        print(f"== {part.name}", file=log, flush=True)
        begin = log.tell()
        process = subprocess.Popen(
            words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT, env=environment()
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Also what the part has started: it would go on using the device.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(begin)
        said = [line.strip() for line in log.read().splitlines() if line.strip()] or ["it said nothing"]
    seconds = time.monotonic() - started
    kept = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
    found.unlink(missing_ok=True)
    found.with_suffix(".part").unlink(missing_ok=True)
    if code is None:
        return Ran(OVER, f"ended after {limit:.0f} s; figures from before are kept", seconds, **kept)
    if code:
        return Ran(FAILED, f"exit code {code}: {said[-1]:.300}", seconds, **kept)
    if not kept.get("figures"):
        return Ran(FAILED, "it measured nothing", seconds, **kept)
    return Ran(DONE, "", seconds, **kept)


def environment() -> dict[str, str]:
    """Of a part: where the gathered packages are, and settings that keep it from the network and from fragmentation."""
    own = os.environ.copy()
    own.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    own.setdefault("CPPO_GPU_KIT_SITE", str(SITE))
    own.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    own.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    return own


def write(out: Path, device: str, ran: Mapping[str, Ran]) -> None:
    """The result so far, as JSON and as a table."""
    whole = {"kit": "cppo-lab GPU kit", "commit": commit(), "asked_for": device}
    parts = {name: asdict(part) for name, part in ran.items()}
    for name, text in ((RESULT, json.dumps(whole | {"parts": parts}, indent=1)), (TABLE, table(whole, ran))):
        beside = out / f"{name}.new"
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(out / name)


def table(whole: Mapping[str, str], ran: Mapping[str, Ran]) -> str:
    """Every figure on a line of its own, below the machine that it is from."""
    lines = [f"{whole['kit']}, commit {whole['commit']}"]
    for name, part in ran.items():
        lines += ["", f"{name}: {part.state}, {part.seconds:.1f} s" + (f": {part.why}" if part.why else "")]
        if part.machine:
            lines.append("  " + ", ".join(f"{key} {value}" for key, value in part.machine.items()))
        lines += [f"  {note}" for note in part.notes]
        lines += [f"    {key:58s} {_shown(figure)}" for key, figure in part.figures.items()]
    return "\n".join(lines)


def _shown(figure: Mapping[str, Any]) -> str:
    value = figure["value"]
    text = (
        f"not measured: {figure.get('absent')}" if value is None else f"{value:g} {figure['unit']}".rstrip()
    )
    if "at_most" not in figure:
        return text
    verdict = "" if value is None else ", met" if figure["met"] else ", NOT MET"
    return f"{text} (at most {figure['at_most']:g}{verdict})"
