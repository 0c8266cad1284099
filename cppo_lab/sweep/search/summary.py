"""The summary of a search before it runs: its space, its finished trials, the cost of a trial."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial

from cppo_lab.estimate import UNCERTAINTY, estimate
from cppo_lab.sweep.search.progress import counted
from cppo_lab.sweep.search.space import Tuning, describe


def summary_text(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The plan of a search as text; `trials` are those of its study."""
    search, spec = tuning.search, tuning.search.search
    width = max(len(key) for key in tuning.space)
    seeds = ", ".join(str(seed) for seed in tuning.seeds)
    return "\n".join(
        [
            f"{search.name}: {search.title}. {search.question}",
            "",
            *(f"{key.ljust(width)}  {describe(one)}" for key, one in tuning.space.items()),
            "",
            f"maximises {', '.join(spec.objectives)} on {tuning.model}, averaged over the seeds {seeds}; "
            f"sampler {spec.sampler.name}, pruner {spec.pruner.name}",
            f"study {tuning.study}: {counted(tuning, trials)}",
            f"one trial: {len(tuning.seeds)} x {tuning.t_stop} training steps{_hours(tuning)}",
        ]
    )


def _hours(tuning: Tuning) -> str:
    """The cost in GPU-hours; empty for runs that need no GPU."""
    cost = estimate(tuning.base.run, tuning.base.layout)
    if cost is None:
        return ""
    each = cost.time.gpu_hours * len(tuning.seeds)
    return (
        f", about {each:.0f} GPU-hours of an H100 80 GB ({each * tuning.trials:.0f} for all trials without pruning), "
        f"good to a factor of {UNCERTAINTY:g} either way"
    )
