"""Time and memory of a plan of 100 to 10,000 runs, compared with Hydra's own --multirun.

Two kinds of sweeps, each planned in a fresh process:

seeds      4 rules x 5 x 5 constants x seeds: few configurations, many seeds.
constants  4 rules x constants that differ from run to run.

Seconds are those of reading the file and making the plan (every run composed, validated and named), imports apart;
`peak_mebibytes` is that of the whole process. Hydra's side: a task that does nothing on the same configuration, its
basic sweeper and launcher, jobs that differ in a rule and a constant; the time per job is that of many jobs less that
of one, so its start-up does not count.

    python benchmarks/plan.py [--quick]

The last line is JSON, see `common.py`.
"""

import tempfile
from pathlib import Path

import yaml
from common import arguments, fresh, result

RULES = ["cppo", "cppo_soft", "cppo_kl", "cppo_binary_tv"]
FACTORS = {100: (5, 5), 1000: (10, 25), 10_000: (50, 50)}  # of the constants that all differ
AT_MOST = {"seconds_10000": 10.0, "peak_mebibytes_10000": 500.0}
AT_LEAST = {"hydra_over_plan_per_run": 10.0}
UNITS = {"*_milliseconds_*": "ms", "*seconds_*": "s", "*_mebibytes_*": "MiB", "hydra_over_*": "x"}
PLAN = """
import json, sys, time
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
start = time.perf_counter()
plan = make_plan(load_sweep(sys.argv[1]))
print(json.dumps([len(plan.runs), time.perf_counter() - start]))
"""
TASK = """
import hydra
from cppo_lab.sweep.groups import CONF

@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def nothing(config):
    pass

nothing()
"""


def axes(kind: str, runs: int) -> dict[str, list[float]]:
    """Those of a sweep of `runs` runs."""
    if kind == "seeds":
        deltas, weights = [0.001 * i for i in range(1, 6)], [round(0.1 * i, 1) for i in range(1, 6)]
        return {"rule.delta_b": deltas, "rule.w_min": weights, "seed": list(range(runs // 100))}
    number_of_deltas, number_of_rates = FACTORS[runs]
    return {
        "rule.delta_b": [round(1e-5 * i, 7) for i in range(1, number_of_deltas + 1)],
        "optim.learning_rate": [round(1e-6 * i, 8) for i in range(1, number_of_rates + 1)],
    }


def hydra_seconds(jobs: int, folder: Path) -> float:
    """Wall seconds of Hydra's own multirun of `jobs` jobs."""
    (folder / "task.py").write_text(TASK)
    values = ",".join(str(0.001 * i) for i in range(1, jobs // 2 + 1)) or "0.001"
    asked = ["rule=cppo,cppo_soft" if jobs > 1 else "rule=cppo", f"rule.delta_b={values}"]
    outputs = ["hydra.job.chdir=false", "hydra.output_subdir=null", f"hydra.sweep.dir={folder}/out"]
    words = ["task.py", "--multirun", *asked, *outputs, "hydra/job_logging=disabled"]
    return fresh(words, folder).seconds


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "100 runs, 4 jobs of Hydra").quick
    sizes, jobs = ([100], 4) if quick else ([100, 1000, 10_000], 30)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for runs in sizes:
            peaks = []
            for kind in ("seeds", "constants"):
                about = {"title": kind, "question": "?", "models": ["mini_base"], "axes": axes(kind, runs)}
                sweep = about | {"variants": {rule: {"rule": rule} for rule in RULES}}
                (folder / "many.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
                taken = fresh(["-c", PLAN, "many.yaml"], folder)
                count, figures[f"{kind}_seconds_{runs}"] = taken.json()
                assert count == runs
                peaks.append(taken.mebibytes)
            figures[f"seconds_{runs}"] = max(
                figures[f"{kind}_seconds_{runs}"] for kind in ("seeds", "constants")
            )
            figures[f"peak_mebibytes_{runs}"] = max(peaks)
        theirs = 1000 * (hydra_seconds(jobs, folder) - hydra_seconds(1, folder)) / (jobs - 1)
    ours = 1000 * figures[f"seconds_{sizes[-1]}"] / sizes[-1]
    figures |= {"hydra_milliseconds_per_run": theirs, "plan_milliseconds_per_run": ours}
    figures["hydra_over_plan_per_run"] = theirs / ours
    for key, value in figures.items():
        print(f"{key:30} {value:.4g}")
    print(result("plan", figures, UNITS, at_most=AT_MOST, at_least=AT_LEAST, quick=quick).line())


if __name__ == "__main__":
    main()
