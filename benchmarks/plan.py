"""Time and memory of a plan of 100 to 10,000 runs, compared with Hydra's own --multirun.

Two kinds of sweeps, each planned in a fresh process:

seeds      4 rules x 5 x 5 constants x seeds: few configurations, many seeds.
constants  4 rules x constants that differ from run to run.

Seconds are those of reading the file and making the plan (every run composed, validated and named), imports apart;
`peak_mebibytes` is that of the whole process. Hydra's side: a task that does nothing on the same configuration, its
basic sweeper and launcher, jobs that differ in a rule and a constant; the time per job is that of many jobs less that
of one, so its start-up does not count.

    python benchmarks/plan.py [--quick]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from summary.form import result

RULES = ["cppo", "cppo_soft", "cppo_kl", "cppo_binary_tv"]
FACTORS = {100: (5, 5), 1000: (10, 25), 10_000: (50, 50)}  # of the constants that all differ
AT_MOST = {"seconds_10000": 10.0, "peak_mebibytes_10000": 500.0}
AT_LEAST = {"hydra_over_plan_per_run": 10.0}
PLAN = """
import json, resource, sys, time
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
start = time.perf_counter()
plan = make_plan(load_sweep(sys.argv[1]))
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"runs": len(plan.runs), "seconds": seconds, "peak": peak}))
"""
TASK = """
import hydra
from cppo_lab.sweep.groups import CONF

@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def nothing(config):
    pass

nothing()
"""


def sweep(kind: str, runs: int) -> dict[str, object]:
    """A sweep file of `runs` runs."""
    tenths = [round(0.1 * i, 1) for i in range(1, 6)]
    axes: dict[str, list[float]] = {"rule.delta_b": [0.001 * i for i in range(1, 6)], "rule.w_min": tenths}
    if kind == "seeds":
        axes["seed"] = list(range(runs // 100))
    else:
        one, other = FACTORS[runs]
        axes = {
            "rule.delta_b": [round(1e-5 * i, 7) for i in range(1, one + 1)],
            "optim.learning_rate": [round(1e-6 * i, 8) for i in range(1, other + 1)],
        }
    about = {"title": kind, "question": "?", "models": ["mini_base"]}
    return {**about, "variants": {rule: {"rule": rule} for rule in RULES}, "axes": axes}


def process(arguments: list[str], folder: Path) -> str:
    """What a fresh process prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def plan(kind: str, runs: int, folder: Path) -> dict[str, float]:
    """Seconds and peak memory of one plan."""
    (folder / "many.yaml").write_text(yaml.safe_dump(sweep(kind, runs), sort_keys=False))
    found: dict[str, float] = json.loads(process(["-c", PLAN, "many.yaml"], folder))
    assert found["runs"] == runs
    return found


def hydra_seconds(jobs: int, folder: Path) -> float:
    """Wall seconds of Hydra's own multirun of `jobs` jobs."""
    values = ",".join(str(0.001 * i) for i in range(1, jobs // 2 + 1))
    start = time.perf_counter()
    (folder / "task.py").write_text(TASK)
    asked = (
        ["rule=cppo,cppo_soft", f"rule.delta_b={values}"] if jobs > 1 else ["rule=cppo", "rule.delta_b=0.001"]
    )
    outputs = ["hydra.job.chdir=false", "hydra.output_subdir=null", f"hydra.sweep.dir={folder}/out"]
    process(["task.py", "--multirun", *asked, *outputs, "hydra/job_logging=disabled"], folder)
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 runs, 4 jobs of Hydra")
    quick = parser.parse_args().quick
    sizes, jobs = ([100], 4) if quick else ([100, 1000, 10_000], 30)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for runs in sizes:
            both = [plan(kind, runs, folder) for kind in ("seeds", "constants")]
            for kind, found in zip(("seeds", "constants"), both, strict=True):
                print(f"{runs} runs ({kind}): {found['seconds']:.2f} s, {found['peak']:.0f} MiB", flush=True)
                figures[f"{kind}_seconds_{runs}"] = found["seconds"]
            figures[f"seconds_{runs}"] = max(one["seconds"] for one in both)
            figures[f"peak_mebibytes_{runs}"] = max(one["peak"] for one in both)
        one, many = hydra_seconds(1, folder), hydra_seconds(jobs, folder)
    theirs, ours = 1000 * (many - one) / (jobs - 1), 1000 * figures[f"seconds_{sizes[-1]}"] / sizes[-1]
    figures |= {"hydra_milliseconds_per_run": theirs, "plan_milliseconds_per_run": ours}
    figures["hydra_over_plan_per_run"] = theirs / ours
    print(f"Hydra's multirun: {theirs:.1f} ms per run")
    units = {"*seconds_*": "s", "*_mebibytes_*": "MiB", "hydra_over_*": "x"}
    units = {"*_milliseconds_*": "ms", **units}
    print(result("plan", figures, units, at_most=AT_MOST, at_least=AT_LEAST, quick=quick).line())


if __name__ == "__main__":
    main()
