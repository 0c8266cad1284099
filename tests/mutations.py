"""Deliberate faults, one of each kind in each room, which the tests must catch.

`make mutations` puts one fault at a time into a copy of the tree, runs the test file that should catch it there, and
writes the table `docs/evidence/mutations.csv`. It fails if a fault survives, if a fault no longer applies to the code,
or if the copy without a fault does not pass. The tests never import this script: a suite that knows its faults proves
nothing.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "evidence" / "mutations.csv"


class Fault(NamedTuple):
    """Replace `old`, which stands exactly once in `file` (a path below the tree), by `new`: `test` must fail."""

    what: str
    file: str
    test: str
    old: str
    new: str


def faults(text: str) -> tuple[Fault, ...]:
    """Written as what is wrong, the file and the test, and the change as in a diff."""
    found = []
    for block in text.strip().split("\n\n"):
        what, places, *lines = block.split("\n")
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        found.append(Fault(what, *places.split(), old, new))
    return tuple(found)


ROOMS = {
    "The maths": faults(
        r"""
the prefix sum includes the token itself (missing right shift)
cppo_lab/maths/weights.py tests/maths/test_golden.py
- torch.cumsum(terms[:, :-1], 1, out=result[:, 1:])
+ torch.cumsum(terms, 1, out=result)

a tie drops the token (prefix test)
cppo_lab/maths/masks.py tests/maths/test_golden.py
- (weighted > delta - excess) & valid
+ (weighted >= delta - excess) & valid

the mask ignores the prefix budget
cppo_lab/maths/masks.py tests/maths/test_golden.py
- tests["budget"], dropped = prefix_fails, token_fails | prefix_fails
+ tests["budget"], dropped = prefix_fails, token_fails

the prefix sum leaves out tokens above the threshold (accumulates kept tokens only)
cppo_lab/maths/masks.py tests/maths/test_golden.py
- excess = prefix_excess(weights, divergence, valid, delta_b)
+ excess = prefix_excess(weights, divergence, valid & (weighted <= delta), delta_b)

T of the weights is the padded width
cppo_lab/maths/weights.py tests/maths/test_golden.py
- length = row_counts(mask)[:, None]
+ length = torch.full_like(row_counts(mask), mask.shape[1])[:, None]

the budget allowance ignores the weights
cppo_lab/maths/weights.py tests/maths/test_golden.py
- (compute_dtype(divergence) - rate).mul_(weights)
+ compute_dtype(divergence) * weights - rate

the cap on rho is omitted
cppo_lab/maths/masks.py tests/maths/test_recipe.py
- min(clamp, math.log(cap))
+ clamp

the percentile takes the lower order statistic (no interpolation)
cppo_lab/maths/weights.py tests/maths/test_golden.py
- position.ceil().long()
+ position.floor().long()

the sign of the direction test is flipped
cppo_lab/maths/tokens.py tests/maths/test_golden.py
- return self.advantages * log_ratio.detach() > 0
+ return self.advantages * log_ratio.detach() < 0

the ratio is a constant (no gradient)
cppo_lab/maths/tokens.py tests/maths/test_rules.py
- _ImportanceObjective.apply(log_ratio, keep
+ _ImportanceObjective.apply(log_ratio.detach(), keep

clipping is symmetric in advantage (GRPO clips the upper side for every sign)
cppo_lab/maths/clips.py tests/maths/test_rules.py
- above = (tokens.advantages > 0) & (ratio > 1 + clip_high)
+ above = ratio > 1 + clip_high

empty responses count in sequence means
cppo_lab/maths/rules.py tests/maths/test_aggregation.py
- (lengths > 0).sum()
+ (lengths >= 0).sum()

TV without its factor 1/2
cppo_lab/maths/divergence.py tests/maths/test_golden.py
- return 0.5 * (mu
+ return 1.0 * (mu

the soft gate omits the budget score
cppo_lab/maths/masks.py tests/maths/test_golden.py
- torch.maximum(tests.weighted / delta, prefix) * valid
+ (tests.weighted / delta) * valid

DRPO's penalty without its factor 1/2
cppo_lab/maths/clips.py tests/maths/test_rules.py
- / (2 * delta)
+ / delta

M2PO compares each token with the limit, not the mean
cppo_lab/maths/responses.py tests/maths/test_rules.py
- outliers[order] = means > m2
+ outliers[order] = ascending > m2

Seq-TIS drops instead of truncating
cppo_lab/maths/responses.py tests/maths/test_rules.py
- weight.clamp_max(ratio_high)
+ torch.where(weight > ratio_high, 0.0, weight)

the off-policy sequence mask drops rewarded responses too
cppo_lab/maths/responses.py tests/maths/test_rules.py
- (tokens.advantages < 0) & (drift > delta)
+ (tokens.advantages != 0) & (drift > delta)

score centering forgets the tail of mu
cppo_lab/maths/rules.py tests/maths/test_centering.py
- coefficient = mu * weight[..., :-1] - mu_rest / pi_rest * weight[..., -1:] * pi
+ coefficient = mu * weight[..., :-1]
"""
    ),
    "Launching": faults(
        r"""
a job waiting to be requeued counts as gone
cppo_lab/launch/slurm/queue.py tests/launch/test_slurm_answers.py
- "PENDING", "REQUEUED", "REQUEUE_HOLD"
+ "PENDING", "REQUEUE_HOLD"

an array that enters the queue after its launcher gave up is not cancelled
cppo_lab/launch/slurm/queue.py tests/launch/test_slurm_answers.py
- cancel([task.job for task in hollow] if tasks else [job_id])
+ cancel([task.job for task in hollow])

runs of a refused submission stay claimed
cppo_lab/launch/slurm/submit.py tests/launch/test_slurm_answers.py
-         ledger.end(ledger.open_tasks(token), "not submitted")

the first task of an array has the name of the whole array
cppo_lab/launch/slurm/queue.py tests/launch/test_ledger_records.py
- if self.size == 1 else
+ if self.position == 0 else

two launchers submit at once (the lock is shared)
cppo_lab/launch/slurm/queue.py tests/launch/test_ledger_records.py
- fcntl.flock(file, fcntl.LOCK_EX)
+ fcntl.flock(file, fcntl.LOCK_SH)

a result that was finished elsewhere counts although the run has a record here
cppo_lab/sweep/launch.py tests/launch/test_elsewhere.py
- if states[i].state in waits and run.is_empty)
+ if states[i].state not in schema.FINISHED)

a failed replacement hides the existing result
cppo_lab/runs/state.py tests/runs/test_state.py
- state.state in {schema.RUNNING, *schema.FINISHED}
+ state.state in {schema.RUNNING, schema.FAILED, *schema.FINISHED}

a run is ended as dead while its job has machines
cppo_lab/launch/queues.py tests/launch/test_queues.py
- if run.locked or queued.place(run_id).active:
+ if run.locked:

two processes that check a run's lock each take the other for its trainer
cppo_lab/runs/folder.py tests/launch/test_queues.py
- return not _locked(lock, fcntl.LOCK_SH)
+ return not _locked(lock)

cppo cancel --queued ends jobs that have started
cppo_lab/launch/queues.py tests/launch/test_slurm_answers.py
- if run_id in waiting or not queued_only}
+ }
"""
    ),
    "Tracking": faults(
        r"""
the offset is stored before the points of its lines are sent
cppo_lab/tracking/upload.py tests/runs/test_spool.py
-             if self.sent.total() > sent and not self.steps:
-                 self._reached(path, offset)
+             if line:
+                 self._reached(path, offset)

a line is sent before it is on disk
cppo_lab/tracking/upload.py tests/runs/test_spool.py
- if end > safe:
+ if offset > safe:

steps of an interrupted run are sent that no file has
cppo_lab/tracking/upload.py tests/runs/test_spool.py
- safe = [line for line in unwritten if is_over or not isinstance(line, StepEvent)]
+ safe = [*unwritten]

the later of two records of a step counts
cppo_lab/runs/spool.py tests/runs/test_spool.py
- if record.rows.setdefault(line.step, line) is not line:
+ if record.rows.update({line.step: line}):

on a full disk a truncated line leaves a gap after it
cppo_lab/runs/spool.py tests/runs/test_spool.py
-                 self._file.seek(self._end)

the stored traceback shows passwords
cppo_lab/runs/recorder.py tests/runs/test_recorder.py
- self.spool.keep(TRACEBACK, redacted(traceback))
+ self.spool.keep(TRACEBACK, traceback)

the newest of several parents of a sweep stays
cppo_lab/tracking/page.py tests/tracking/test_page.py
- key=lambda run: (run.info.start_time, run.info.run_id)
+ key=lambda run: (-run.info.start_time, run.info.run_id)

results are deleted before the run that replaces them has finished
cppo_lab/tracking/upload.py tests/tracking/test_upload.py
- if recorded_status(tags) not in schema.FINISHED or not tags.get(schema.TAG_REPLACES):
+ if not tags.get(schema.TAG_REPLACES):
"""
    ),
    "Analysis": faults(
        r"""
the step T_stop lies outside the window
analysis/scoring.py tests/analysis/test_scoring.py
- window = curve.loc[:t_stop]
+ window = curve if t_stop is None else curve[curve.index < t_stop]

steps with an unknown mean are candidates (NaN passes)
analysis/scoring.py tests/analysis/test_scoring.py
- np.flatnonzero(~np.isnan(scores))
+ np.arange(len(scores))

unfinished runs count in a cell with finished ones
analysis/scoring.py tests/analysis/test_scoring.py
- counted = finished or [
+ counted = finished + [

a newer unfinished run hides a finished one
analysis/scoring.py tests/analysis/test_scoring.py
- ["done", "start", "mlflow_id"]
+ ["start", "mlflow_id"]

the noise of a difference is used as that of one evaluation
analysis/scoring.py tests/analysis/statistics/test_summary.py
- for value in steps) / len(steps) / 2)
+ for value in steps) / len(steps))

infinity is read as the largest number that a database holds
cppo_lab/tracking/read.py tests/tracking/test_read.py
- {step: (step, unclipped(value), time_ms) for
+ {step: (step, value, time_ms) for

runs are paired by their order instead of by their seed
analysis/statistics/paired.py tests/analysis/statistics/test_paired.py
- mean_of([ours[seed] - theirs[seed] for seed in shared])
+ mean_of([a - b for a, b in zip(ours.values(), theirs.values(), strict=False)])

Holm's adjusted p-values decrease again
analysis/statistics/estimate.py tests/analysis/statistics/test_estimate.py
- np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * p[order]))
+ np.minimum(1.0, np.arange(len(p), 0, -1) * p[order])

equivalence uses only one of its two tests
analysis/statistics/verdicts.py tests/analysis/statistics/test_verdicts.py
- None if above is None or below is None else max(above, below)
+ None if above is None or below is None else min(above, below)

the area is divided by the last step instead of the length of the window
analysis/statistics/values.py tests/analysis/statistics/test_values.py
- / (steps[-1] - steps[0]))
+ / steps[-1])

the step is also selected on the held-out benchmark
analysis/statistics/values.py tests/analysis/statistics/test_values.py
- others = (total - left_out) / (count - 1)
+ others = total / count
"""
    ),
}


def outcome(fault: Fault | None, tests: tuple[str, ...]) -> tuple[int, str, float]:
    """Exit code of pytest on a copy of the tree with `fault`, the first test that failed, and the seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cppo-mutation-") as folder:
        unneeded = shutil.ignore_patterns(".*", "__pycache__", "build")  # no room: `runs` is one
        copy = shutil.copytree(ROOT, folder, ignore=unneeded, dirs_exist_ok=True)
        if fault is not None:  # one whose line is gone survives; tests/test_documents.py names it sooner
            path = Path(copy, fault.file)
            path.write_text(path.read_text().replace(fault.old, fault.new))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tier", "fast", *tests],
            cwd=copy,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            errors="replace",
        )
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else "", time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="only faults with TEXT; writes no table")
    only = parser.parse_args().only
    chosen = [(title, fault) for title, faults in ROOMS.items() for fault in faults if only in fault.what]
    began = time.monotonic()
    rows, survivors = [], 0
    with ThreadPoolExecutor(2) as pool:
        sound = pool.submit(outcome, None, tuple(sorted({fault.test for _, fault in chosen})))
        tries = pool.map(outcome, [fault for _, fault in chosen], [(fault.test,) for _, fault in chosen])
        code, failed, seconds = sound.result()
        if code:
            print(f"fails without any fault: {failed or f'pytest ended with {code}'}", file=sys.stderr)
            pool.shutdown(cancel_futures=True)
            return 1
        print(f"without a fault all pass ({seconds:.0f} s)", flush=True)
        for (title, fault), (code, failed, seconds) in zip(chosen, tries, strict=True):
            caught = code == 1  # other codes: pytest itself failed, which proves nothing
            survivors += not caught
            said = "caught  " if caught else "SURVIVED"
            print(f"{said}  {title}: {fault.what}  {failed} ({seconds:.0f} s)", flush=True)
            path, _, test = failed.partition("::")
            shown = f"{Path(path).name}::{test.partition('[')[0]}" if caught else "SURVIVED"
            rows.append((title, fault.what, fault.file, shown))
    print(f"{len(rows)} faults, {survivors} survived ({time.monotonic() - began:.0f} s)")
    if not only:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("room", "fault", "file", "first failing test"))
            writer.writerows(rows)
    return 1 if survivors or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
