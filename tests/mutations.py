"""Deliberate faults in the maths, each of which the tests of the maths must catch.

`make mutations` applies one fault at a time to a copy of the tree, runs `tests/maths` there, and writes the table
`docs/mutations.md`. It fails if a fault survives, if a fault no longer applies to the code, or if the copy without
a fault does not pass. The tests never import this script: a suite that knows its faults proves nothing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "mutations.md"
COPIED = ("cppo_lab", "analysis", "reports", "conf", "sweeps", "tests", "pyproject.toml")


@dataclass(frozen=True)
class Fault:
    """Replace `old`, which stands exactly once in `file` of cppo_lab/maths, by `new`."""

    what: str
    file: str
    old: str
    new: str


FAULTS = (
    Fault(
        "the prefix sum includes the token itself (missing right shift)",
        "weights.py",
        "torch.cumsum(terms[:, :-1], 1, out=result[:, 1:])",
        "torch.cumsum(terms, 1, out=result)",
    ),
    Fault(
        "a tie drops the token (token threshold, CPPO)",
        "masks.py",
        "(weighted > delta) & valid",
        "(weighted >= delta) & valid",
    ),
    Fault(
        "a tie drops the token (prefix test)",
        "masks.py",
        "(weighted > delta - excess) & valid",
        "(weighted >= delta - excess) & valid",
    ),
    Fault(
        "a tie drops the token (DPPO)",
        "masks.py",
        '(batch.required_divergence("dppo") > delta)',
        '(batch.required_divergence("dppo") >= delta)',
    ),
    Fault(
        "a tie drops the response (TRM-Max)",
        "sequence_masks.py",
        '_largest(batch.required_divergence("trm_max")) <= delta_max)',
        '_largest(batch.required_divergence("trm_max")) < delta_max)',
    ),
    Fault(
        "the prefix sum leaves out tokens above the threshold (accumulates kept tokens only)",
        "masks.py",
        "excess = prefix_excess(weights, divergence, valid, delta_b)",
        "excess = prefix_excess(weights, divergence, valid & (weighted <= delta), delta_b)",
    ),
    Fault(
        "c_t is clamped at zero",
        "masks.py",
        "(weighted > delta - excess) & valid",
        "(weighted > (delta - excess).clamp_min(0)) & valid",
    ),
    Fault(
        "unspent budget raises the threshold above delta (no min)",
        "masks.py",
        "token_fails if prefix_fails is None else token_fails | prefix_fails",
        "token_fails if prefix_fails is None else prefix_fails",
    ),
    Fault(
        "T of the weights is the padded width",
        "weights.py",
        "length = row_counts(mask)[:, None]",
        "length = torch.full_like(row_counts(mask), mask.shape[1])[:, None]",
    ),
    Fault(
        "weights rise instead of falling (reversed)",
        "weights.py",
        "torch.addcmul(torch.ones_like(slope), slope, index)",
        "torch.addcmul(torch.full_like(slope, w_min), slope, -index)",
    ),
    Fault(
        "weights are off by one position",
        "weights.py",
        "device=mask.device, dtype=torch.float64)\n",
        "device=mask.device, dtype=torch.float64) + 1\n",
    ),
    Fault(
        "the budget allowance ignores the weights",
        "weights.py",
        "(compute_dtype(divergence) - rate).mul_(weights)",
        "compute_dtype(divergence) * weights - rate",
    ),
    Fault(
        "adaptive delta_b is capped at 5 times its floor", "budget.py", "cap: float = 2.0", "cap: float = 5.0"
    ),
    Fault("adaptive delta_b is the 95th percentile", "budget.py", "QUANTILE = 0.9", "QUANTILE = 0.95"),
    Fault(
        "the percentile takes the lower order statistic (no interpolation)",
        "budget.py",
        "position.ceil().long()",
        "position.floor().long()",
    ),
    Fault(
        "the sign of the direction test is flipped",
        "output.py",
        "return self.advantages * self.log_ratio.detach() > 0",
        "return self.advantages * self.log_ratio.detach() < 0",
    ),
    Fault(
        "the ratio is a constant (no gradient)",
        "output.py",
        "_ImportanceObjective.apply(batch.log_ratio, keep",
        "_ImportanceObjective.apply(batch.log_ratio.detach(), keep",
    ),
    Fault(
        "CISPO's weight carries a gradient",
        "importance.py",
        "_weighted_logp(batch, batch.log_ratio.detach().exp(), clip_low, clip_high)",
        "_weighted_logp(batch, batch.log_ratio.exp(), clip_low, clip_high)",
    ),
    Fault(
        "MinPRO's prefix includes the token itself",
        "importance.py",
        "prefix[:, 1:] = log_ratio[:, :-1].cummin(1).values",
        "prefix[:, 1:] = log_ratio[:, 1:].cummin(1).values",
    ),
    Fault(
        "clipping is symmetric in advantage (GRPO clips the upper side for every sign)",
        "surrogates.py",
        "above = (batch.advantages > 0) & (ratio > 1 + clip_high)",
        "above = ratio > 1 + clip_high",
    ),
    Fault("standard deviation of the population (n)", "advantages.py", "(count - 1).clamp_min(1)", "count"),
    Fault(
        "empty responses count in sequence means",
        "aggregation.py",
        "(lengths > 0).sum()",
        "(lengths >= 0).sum()",
    ),
    Fault("TV without its factor 1/2", "divergence.py", "return 0.5 * (mu", "return 1.0 * (mu"),
    Fault(
        "KL in the other direction",
        "divergence.py",
        "return (mu * log_ratio).sum(-1).clamp_min(0)",
        "return (pi_logp.exp() * -log_ratio).sum(-1).clamp_min(0)",
    ),
    Fault(
        "the soft gate leaves the budget score out",
        "soft.py",
        "torch.maximum(tests.weighted / delta, prefix) * valid",
        "(tests.weighted / delta) * valid",
    ),
)


def outcome(fault: Fault | None) -> tuple[int, str]:
    """Exit code of pytest on a copy of the tree with `fault`, and the first test that failed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "build")
                )
            else:
                shutil.copy(source, copy / name)
        if fault is not None:
            path = copy / "cppo_lab" / "maths" / fault.file
            text = path.read_text(encoding="utf-8")
            if text.count(fault.old) != 1:
                raise SystemExit(
                    f"fault {fault.what!r}: {fault.old!r} does not stand once in {fault.file}: mend the list"
                )
            path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/maths"]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": folder,
        }
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    failed = re.search(r"^FAILED tests/maths/(\S+)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", metavar="TEXT", help="only faults whose description contains TEXT; writes no table"
    )
    only = parser.parse_args().only
    if outcome(None)[0] != 0:
        print("tests/maths fail without any fault: mend that first", file=sys.stderr)
        return 1
    rows, survivors = [], 0
    for fault in FAULTS:
        if only is not None and only not in fault.what:
            continue
        code, test = outcome(fault)
        caught = code == 1 and bool(test)  # other codes: pytest itself failed, which proves nothing
        survivors += not caught
        name = test.split("::")[-1].split("[")[0] if caught else ""
        print(f"{'caught  ' if caught else 'SURVIVED'}  {fault.what}  {test}", flush=True)
        rows.append(f"| {fault.what} | `{fault.file}` | {f'`{name}`' if caught else '**survived**'} |")
    print(f"{len(rows)} faults, {survivors} survived")
    if only is None:
        TABLE.parent.mkdir(exist_ok=True)
        head = (
            "# Deliberate faults\n\nEach fault is put into a copy of `cppo_lab/maths` by itself; `tests/maths` must "
            "fail. Made by `make mutations`.\n\n| fault | in | first test that caught it |\n| --- | --- | --- |\n"
        )
        TABLE.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
