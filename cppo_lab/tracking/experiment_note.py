"""The description of the experiments `cppo-mini` and `cppo-verl`, as Markdown: what is in them, and how to compare."""

from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.tracking.markdown import code, table

# MLflow's own tag: which of its pages an experiment opens on.
_KIND, _TRAINING = "mlflow.experimentKind", "custom_model_development"
# A user who edits the description removes this line, and the description is no longer overwritten.
MARK = "*Written by `cppo launch`, and anew when its text changes, unless you take this line out.*"

_COMPARE = """\
- *One sweep*: the menu of views at the top right has one for each sweep, with its columns and charts; its description \
is that of the run `sweep NAME`.
- *Means over seeds*: each sweep has a second view, `mean of each variant`: lines are means, bands go from the lowest \
seed to the highest. MLflow chooses the colours of groups; single runs have those of the report.
- *All curves at once*: the view `Training runs`. Sorted by *Created*, MLflow folds runs under their sweep; sorted by \
anything else, it lists them.
- *Two methods*: filter (as below), tick the runs, *Compare*. Every metric is logged by training step, under the same \
name in every core.
- *Beside the paper*: tick this experiment and `paper` in the list of experiments, *Compare*: the curves of both are \
in one chart (`cppo reference import` brings the paper's)."""
_TAGS = {
    schema.TAG_RUN_ID: "hash of the resolved configuration, seed included; `cppo show` takes it",
    schema.TAG_SWEEP_PREFIX + "NAME": "the run belongs to sweep NAME, as this variant of it",
    schema.TAG_SWEEP_PARENT: "on the run that stands for a sweep and has its description",
    schema.TAG_RULE: "the trust-region rule",
    schema.TAG_MODEL: "the model, as `conf/model/` names it",
    schema.TAG_SEED: "the seed",
    schema.TAG_CORE: "the trainer core",
    schema.TAG_T_STOP: "training steps that were asked for",
    schema.TAG_STATUS: "the state of the run: " + ", ".join(schema.STATUSES),
    schema.TAG_REASON: "why it failed, collapsed or was interrupted",
    schema.TAG_CODE_VERSION: "the version of the code that trained it",
}
_GROUPS = {
    "val": "validation: `val/<benchmark>/avg_at_<k>`, fractions; `mean` is the unweighted mean over the benchmarks",
    "train": "the rollout batch and the update",
    "rule": "what the trust region did",
    "mismatch": "sampler against trainer, over the updates of the step; also as `before_update/` (the two engines at "
    "the same weights), and of the `early/`, `middle/`, `late/` third of a response",
    "perf": "time and throughput",
    "search": "trials of a search for constants",
}


def experiment_note(core: str) -> str:
    """The description of the experiment of `core`."""
    groups: dict[str, list[str]] = {"val": []}
    for metric in schema.METRICS:
        groups.setdefault(metric.name.partition("/")[0], []).append(code(metric.name.partition("/")[2]))
    parts = [
        f"## CPPO Lab, core `{core}`",
        core_of(core).note,
        "### How to compare",
        _COMPARE,
        "### Tags",
        "Filter by them: ``tags.`cppo.rule` = 'cppo' AND tags.`cppo.seed` = '0'``.",
        table(("tag", "meaning"), [(code(tag), meaning) for tag, meaning in _TAGS.items()]),
        "### Metrics",
        table(
            ("group", "what", "names"),
            [(code(group), _GROUPS.get(group, ""), ", ".join(names)) for group, names in groups.items()],
        ),
        MARK,
    ]
    return "\n\n".join(parts) + "\n"


def describe_experiment(client: MlflowClient, experiment_id: str, core: str) -> None:
    """Give an experiment its description, unless a user has given it one."""
    note, tags = experiment_note(core), client.get_experiment(experiment_id).tags
    if _KIND not in tags:
        client.set_experiment_tag(experiment_id, _KIND, _TRAINING)
    old = tags.get(schema.TAG_NOTE, "")
    if old != note and (not old or MARK in old):
        client.set_experiment_tag(experiment_id, schema.TAG_NOTE, note)
