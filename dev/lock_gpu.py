"""Makes requirements-gpu-fsdp.lock: what a machine with NVIDIA GPUs installs for FSDP2 layouts and vLLM.

`python3 -m dev.lock_gpu`, or `make lock-gpu`, resolves this project with `verl[vllm,fsdp]` for CPython 3.12 on Linux
(x86-64) through `uv` (pip install uv). Nothing is installed, and no GPU is needed. What verl settles in its own
`[tool.uv]`, which pip ignores, is here in OVERRIDES. The locks say until when a release counts: whoever resolves
with that date gets the same packages, whatever has come since.
"""

import re
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dev.errors import DevError
from dev.lock import Pin, as_text, canonical, compiled, pins

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-gpu-fsdp.lock"
FLASH = ROOT / "requirements-gpu-flash-attn.lock"
EXTRAS = "train,search,report,ui,postgres,data,gpu"
REQUIREMENTS = ("verl[vllm,fsdp]==0.9.1",)
# verl 0.9.1's own (its pyproject.toml, [tool.uv].override-dependencies).
OVERRIDES = ("transformers==5.9.0", "numpy>=2.0.0", "kernels>=0.12.0,<0.13")
# A mirror of the index shows a release some hours late: by then resolving until the same time finds another one.
SETTLED = timedelta(days=2)
# A source archive, whose metadata takes torch to build. It comes last: it is built against the torch of the lock.
LAST = "flash-attn"
CONFIG = f"""override-dependencies = {list(OVERRIDES)}
[[dependency-metadata]]
name = "{LAST}"
version = "2.8.3"
requires-dist = ["torch", "einops"]
"""
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34")
HEADER = """\
# Made by `make lock-gpu`; do not edit. CPython 3.12 on Linux (x86-64), CUDA 13. To install from it: docs/verl.md.
# Of what the package index had at {until}.
"""
UNTIL = re.compile(r"^# Of what the package index had at (\S+)\.$", re.M)


def until(text: str) -> str:
    """Until when a release counted for a lock, as it says itself: a time of RFC 3339.

    Raises:
        DevError: it does not say.
    """
    found = UNTIL.search(text)
    if found is None:
        raise DevError("the lock does not say until when a release counted: run `make lock-gpu`")
    return found[1]


def resolved(newest: str) -> dict[str, Pin]:
    """The pins that uv finds among releases until `newest` (a time of RFC 3339), with the SHA-256 of their files.

    Raises:
        DevError: no uv, or there is no solution.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted, config = Path(folder, "wanted.in"), Path(folder, "uv.toml")
        ours = f"cppo-lab[{EXTRAS}] @ {ROOT.as_uri()}"
        wanted.write_text("\n".join([ours, *REQUIREMENTS]) + "\n", encoding="utf-8")
        config.write_text(CONFIG, encoding="utf-8")
        # To read this project's metadata any Python does: none is downloaded.
        options = ("--exclude-newer", newest, "--no-python-downloads")
        text = compiled("--config-file", str(config), *PLATFORM, *options, str(wanted))
    lines = [line for line in text.splitlines() if not line.startswith("cppo-lab")]
    return pins("\n".join(lines))


def locks(newest: str) -> dict[Path, str]:
    """Both locks as they are to be, of releases until `newest`.

    Raises:
        DevError: no uv, or there is no solution.
    """
    found, header = resolved(newest), HEADER.format(until=newest)
    last = {canonical(LAST): found.pop(canonical(LAST))}
    return {LOCK: as_text(found, header), FLASH: as_text(last, header)}


def main() -> int:
    """Writes both locks and returns the exit status."""
    try:
        found = locks(f"{datetime.now(UTC) - SETTLED:%Y-%m-%dT%H:%M:%SZ}")
    except DevError as error:
        print(f"dev.lock_gpu: error: {error}", file=sys.stderr)
        return 1
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(pins(text))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
