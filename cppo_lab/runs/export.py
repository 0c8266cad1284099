"""What a run has learned, for other programs (`cppo export`); archives of runs; what they take on the disk, and how to
free what neither a result nor an unfinished run needs.

A model is a folder that `transformers` loads, with its tokenizer and a model card that names the run. The folder
appears as a whole or not at all. A run that is being trained is refused: its best checkpoint may change. All is read
from the run's folder, without the tracking store; the weights are written by the `Exporter` of its core
(`cppo_lab.core_records`).
"""

import contextlib
import json
import os
import re
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from pydantic import TypeAdapter, ValidationError

from cppo_lab import schema
from cppo_lab.core_records import (
    BEST_CHECKPOINT,
    BEST_MODEL,
    CHECKPOINT,
    CHECKPOINTS,
    Exported,
    Resources,
    core_of,
    load_part,
)
from cppo_lab.errors import UserError, first_fault, printable
from cppo_lab.files import appearing, names_below, open_below, require_free
from cppo_lab.runs.folder import ASIDE, CONFIG, AlreadyRunning, is_locked, read_config, read_status, run_lock
from cppo_lab.runs.machine import code_version, versions_in
from cppo_lab.runs.spool import SPOOL_FOLDER, StepEvent, add_evaluation, lines, newest_record
from cppo_lab.runs.tags import as_yaml, code, resolved_yaml, run_name, variants_in
from cppo_lab.spec import HubModel, MathData, RunSpec
from cppo_lab.spec.parse import parse_run

CARD = "README.md"
PAPER = "arXiv 2606.10968"
DATASETS = {"dapo_math_17k": "BytedTsinghua-SIA/DAPO-Math-17k"}  # on the hub, by `data.training`
_PACKAGES = ("torch", "verl", "transformers")


def export(runs: Path, run_id: str, out: Path, say: Callable[[str], None]) -> Path:
    """Write the model that run `run_id` has kept, its tokenizer and its model card to the folder `out`.

    `runs` is the folder of all runs, `say` takes lines of progress. `out` appears as a whole or not at all. Returns its
    resolved path. Raises UserError if the run is being trained, has no usable checkpoint, or if `out` exists and is not
    empty.
    """
    place = require_free(out)
    if is_locked(runs / run_id):
        raise being_trained(run_id)
    subject = read_subject(runs, run_id)
    exporter = load_part(subject.spec.core, "exporter")  # of a core without one, no retry would help
    require_weights(subject, runs / run_id)
    with appearing(place) as folder:
        exported = exporter(subject.spec, runs, folder, say)
        (folder / CARD).write_text(model_card(subject, exported), encoding="utf-8")
    return place


def being_trained(run_id: str) -> UserError:
    """The error for a run that is still training, so that its checkpoints may change."""
    return UserError(
        f"run {run_id} is being trained, and its best checkpoint may change: wait for its end (`cppo watch`), or end "
        f"it with `cppo cancel --run {run_id}`"
    )


def require_weights(subject: "Subject", folder: Path) -> None:
    """Raise UserError if a finished run that had a best model has no checkpoint at all any more."""
    had_weights = subject.status in schema.FINISHED and max(subject.scores, default=0) > 0
    if had_weights and not any((folder / name).exists() for name in PARTS["checkpoints"]):
        raise UserError(
            f"run {subject.spec.run_id} has no checkpoint any more: `cppo clean --checkpoints` frees those of finished "
            f"runs; `cppo retry SWEEP --run {subject.spec.run_id} --finished` trains it again"
        )


@dataclass(frozen=True)
class Subject:
    """A run as recorded in its folder, without the tracking store.

    `tags` are those of its newest record, `metrics` the recorded ones by training step, `ended` the end of that record
    in ms since the epoch (None: it has not ended). `status` is in schema.STATUSES, or empty.
    """

    spec: RunSpec
    tags: Mapping[str, str]
    metrics: Mapping[int, Mapping[str, float]]
    status: str = ""
    ended: int | None = None

    @property
    def sweeps(self) -> dict[str, str]:
        """The name of the run's variant in each sweep that its tags name."""
        return variants_in(self.tags)

    @property
    def name(self) -> str:
        """The run's name as in MLflow: variant, model and seed."""
        return run_name(self.spec, self.sweeps)

    @property
    def scores(self) -> dict[int, float]:
        """The score of each recorded validation, by training step."""
        name = schema.validation_metric(schema.MEAN, self.spec.validation.samples)
        return {step: row[name] for step, row in sorted(self.metrics.items()) if name in row}


def read_subject(runs: Path, run_id: str) -> Subject:
    """Read the records in the folder of run `run_id` in `runs`.

    Raises UserError if it has no configuration of that run, or a link among the files that are read.
    """
    files = [
        (run_id, CONFIG),
        *((run_id, SPOOL_FOLDER, name) for name in names_below(runs, run_id, SPOOL_FOLDER)),
    ]
    for names in files:
        if names[-1].endswith((".json", ".jsonl")) and (file := open_below(runs, *names)) is not None:
            file.close()
    folder = runs / run_id
    config = read_config(folder / CONFIG)
    if not config:
        raise UserError(
            f"run {run_id} has kept no checkpoint: {folder} has no {CONFIG}, so the run has not started, or its "
            "folder is damaged"
        )
    spec = parse_run(config, str(folder / CONFIG))
    if spec.run_id != run_id:
        raise UserError(
            f"{folder / CONFIG} is of run {spec.run_id}: the folder was copied, or the file was changed"
        )
    record = newest_record(folder)
    if record is None or record.begin.tags.get(schema.TAG_RUN_ID) != run_id:
        return Subject(spec, {}, {})
    metrics = {step: row.metrics for step, row in record.rows.items()}
    how = () if record.end is None else (record.end.status, record.end.time_ms)
    return Subject(spec, record.begin.tags, metrics, *how)


def evaluate(subject: Subject, other: RunSpec, resources: Resources) -> tuple[int, dict[str, float]]:
    """The step of a finished run's best model, and its Avg@k on the benchmarks of `other` (`core_records.Evaluator`).

    They are recorded with the run; what is recorded already is not measured again. Raises UserError as the evaluator,
    and if the run is being trained or is not finished.
    """
    spec, folder, samples = subject.spec, resources.folder, subject.spec.validation.samples
    if is_locked(folder):
        raise being_trained(spec.run_id)
    require_weights(subject, folder)
    metrics = {name: schema.evaluation_metric(name, samples) for name in other.data.benchmarks}
    with run_lock(folder):
        record = newest_record(folder)
        if record is None or not {*metrics.values()} <= record.evaluations.keys():
            step, scores = load_part(spec.core, "evaluator")(spec, other, resources)
            record = add_evaluation(folder, step, {metrics[name]: score for name, score in scores.items()})
        else:
            resources.doing(
                f"run {spec.run_id} was evaluated on this before: its recorded scores, not measured again"
            )
    rows = {name: record.evaluations[metric] for name, metric in metrics.items()}
    return rows[other.data.benchmarks[0]].step, {
        name: row.metrics[metrics[name]] for name, row in rows.items()
    }


# The model card: README.md with the front matter that the Hugging Face hub reads.


def model_card(subject: Subject, exported: Exported) -> str:
    """The whole card. It uses only the run's folder and the export."""
    front, spec = as_yaml(front_matter(subject, exported)), subject.spec
    summary = (
        f"The best checkpoint by validation of run `{spec.run_id}`: {code(spec.model.name)} trained with the rule "
        f"{code(spec.rule.name)} by CPPO Lab, which compares trust-region rules for reinforcement learning of language "
        f"models ({PAPER})."
    )
    prompt = "Prompts are chat messages with the problem in DAPO-Math-17k's wording, as in training."
    if not _is_published(spec):
        summary += (
            f"\n\n**A miniature**: {exported.parameters:,} parameters on a made-up arithmetic task, trained by "
            f"{core_of(spec.core).title}. It is no language model, and no evidence for or against the paper's claims."
        )
        prompt = (
            "Texts consist of the symbols of the task, separated by spaces; the tokenizer knows no others."
        )
    parts = [
        f"---\n{front}---",
        f"# {code(printable(subject.name))}",
        summary,
        _table(_facts(subject, exported)),
        "## Evaluation",
        _evaluation(subject, exported),
        "## Use",
        "```python\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained("this folder")\n'
        'tokenizer = AutoTokenizer.from_pretrained("this folder")\n'
        f"```\n\n{prompt} There is no optimiser state here: to continue training, use the run's own checkpoints.",
        "## Configuration",
        _configuration(subject),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(subject: Subject, exported: Exported) -> dict[str, Any]:
    """The metadata that the hub reads from a card."""
    spec = subject.spec
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if isinstance(spec.model, HubModel):
        metadata["base_model"] = spec.model.repository
    if isinstance(spec.data, MathData) and spec.data.training in DATASETS:
        metadata["datasets"] = [DATASETS[spec.data.training]]
    metadata["tags"] = ["cppo-lab", "reinforcement-learning", *([] if _is_published(spec) else ["miniature"])]
    samples = spec.validation.samples
    # The scores of the exported checkpoint, an entry for each benchmark that was validated.
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"type": name, "name": name},
            "metrics": [{"type": f"avg_at_{samples}", "name": f"Avg@{samples}", "value": value}],
        }
        for name, value in _by_benchmark(subject, exported.step).items()
    ]
    if results:
        metadata["model-index"] = [{"name": printable(subject.name), "results": results}]
    return metadata


def _by_benchmark(subject: Subject, step: int) -> dict[str, float]:
    row, samples = subject.metrics.get(step, {}), subject.spec.validation.samples
    names = {name: schema.validation_metric(name, samples) for name in subject.spec.data.benchmarks}
    return {name: row[metric] for name, metric in names.items() if metric in row}


def _is_published(spec: RunSpec) -> bool:
    return isinstance(spec.model, HubModel)


def _facts(subject: Subject, exported: Exported) -> dict[str, str]:
    """What the run is, as Markdown."""
    spec, tags, scores = subject.spec, subject.tags, subject.scores
    sweeps = [f"{code(name)} (variant {code(variant)})" for name, variant in sorted(subject.sweeps.items())]
    model = code(spec.model.name)
    if isinstance(spec.model, HubModel):
        model += f": {code(spec.model.repository)} at {code(spec.model.revision)}"
    how = f", {subject.status}" if subject.status else ", without a recorded end"
    last = max(subject.metrics, default="an unknown number")
    facts = {
        "Run": code(spec.run_id),
        "Sweep": ", ".join(sweeps) or "none on record",
        "Rule": code(spec.rule.name),
        "Model": model,
        "Seed": str(spec.seed),
        "Core": code(spec.core),
        "Data": code(spec.data.name),
        "Step of these weights": f"{exported.step}; the run: {last} of {spec.training.t_stop}{how}",
        "Score of these weights": _score(scores, exported.step, spec.validation.samples),
    }
    later = {step: score for step, score in scores.items() if step}
    if later:
        best = max(later, key=lambda step: (later[step], step))
        facts["Best score of the run"] = _score(later, best, spec.validation.samples)
    facts["Score before training"] = _score(scores, 0, spec.validation.samples)
    facts["Weights"] = f"{exported.parameters:,} in {exported.dtype}"
    # Several commits if it was continued by another.
    version, commits = tags.get(schema.TAG_CODE_VERSION, ""), tags.get(schema.TAG_COMMIT, "").split()
    parts = [f"CPPO Lab {code(version)}"] if version else []
    parts += [f"commit {' '.join(code(commit) for commit in commits)}"] if commits else []
    parts += ["with changes that are in no commit"] if tags.get(schema.TAG_DIRTY) == "true" else []
    facts["Code"] = ", ".join(parts) or "not on record"
    versions = versions_in(tags)
    facts["Packages"] = ", ".join(f"{name} {code(versions[name])}" for name in _PACKAGES if name in versions)
    if subject.ended is not None:
        facts["Ended"] = f"{datetime.fromtimestamp(subject.ended / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    facts["Exported by"] = f"CPPO Lab {code(code_version())}"
    return {name: printable(value) for name, value in facts.items() if value}


def _score(scores: Mapping[int, float], step: int, samples: int) -> str:
    """A validation score, which is a fraction, and its step."""
    if step not in scores:
        return "not on record"
    return f"{scores[step]:.4f} (mean Avg@{samples}) at step {step}"


def _evaluation(subject: Subject, exported: Exported) -> str:
    spec = subject.spec
    settings = spec.validation
    graded = "by mathematical equality (math-verify)" if _is_published(spec) else "by the task's own check"
    text = (
        f"Avg@{settings.samples}: the share of right answers among {settings.samples} responses to each problem, "
        f"sampled at temperature {settings.temperature:g} and top-p {settings.top_p:g} with at most "
        f"{spec.rollout.max_response_length:,} tokens, graded {graded}. Validated every {settings.every} steps; the "
        "mean over the benchmarks selects the checkpoint (on a tie the later one), so the selected score is biased "
        "upwards."
    )
    scores = _by_benchmark(subject, exported.step)
    if not scores:
        return f"{text}\n\nThe scores of step {exported.step} were not recorded."
    rows = {code(name): f"{value:.4f}" for name, value in scores.items()}
    if exported.step in subject.scores:
        rows["mean"] = f"{subject.scores[exported.step]:.4f}"
    return f"{text}\n\n{_table(rows, ('Benchmark', f'Avg@{settings.samples} at step {exported.step}'))}"


def _configuration(subject: Subject) -> str:
    """Everything that decides the run's numbers, folded."""
    text = resolved_yaml(subject.spec)
    if layout := subject.tags.get(schema.TAG_LAYOUT):
        text += yaml.safe_dump({"layout": layout})
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    head = "<details>\n<summary>Resolved, as the run's id names it</summary>"
    return f"{head}\n\n{fence}yaml\n{text}{fence}\n\n</details>"


def _table(rows: Mapping[str, str], head: tuple[str, str] = ("", "")) -> str:
    lines = [head, ("---", "---"), *rows.items()]
    return "\n".join(f"| {left} | {right} |" for left, right in lines)


# What can be freed of a finished run, by the name of its option: `cppo export` needs the first, nothing the second.
PARTS = {
    "checkpoints": (CHECKPOINT, CHECKPOINTS, BEST_MODEL, BEST_CHECKPOINT),
    "superseded": (ASIDE,),
}
# Besides these, archives lack what belongs to this machine: locks, launchers' files, progress of uploads and messages.
_NOT_ARCHIVED = re.compile(
    "|".join(map(re.escape, sum(PARTS.values(), ())))
    + r"|attempts|cancelled|lock|notified-\w+|shipped\.json.*|.*\.(lock|partial)"
)

ABOUT = "archive.json"  # in an archive
_RUN = re.compile(r"runs/[0-9a-f]{12}/")


def usage(folder: Path) -> Counter[str]:
    """Bytes of a run's folder (`disk`), and of its PARTS, as far as they can be freed."""
    return Counter(
        disk=size_of(folder), **{part: sum(map(size_of, _paths(folder, [part]))) for part in PARTS}
    )


def remove(folder: Path, parts: Collection[str]) -> int:
    """Free PARTS of a run unless it has not finished or a process trains it; returns the bytes. Follows no link."""
    removed = 0
    with contextlib.suppress(AlreadyRunning), run_lock(folder):
        for path in _paths(folder, parts):
            size = size_of(path)
            with contextlib.suppress(OSError):  # another account's
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
                removed += size
    return removed


def _paths(folder: Path, parts: Collection[str]) -> list[Path]:
    """What there is of the parts of a run that has finished."""
    if folder.is_symlink() or read_status(folder).get("status") not in schema.FINISHED:
        return []
    paths = [folder / name for part in parts for name in PARTS[part]]
    return [path for path in paths if path.exists() and not path.is_symlink()]


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [Path(at, name) for at, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):  # it is gone
            total += file.lstat().st_size
    return total


def archive(roots: Mapping[str, Path], about: Mapping[str, Any], out: BinaryIO) -> None:
    """Write a ZIP archive of folders by their names in it, and `about` as ABOUT. The same files give
    the same bytes. Of runs it has configurations, packages, spools, outcomes, answers and output.

    Raises UserError for a link among the files.
    """
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(_member(ABOUT), json.dumps(about, indent=1))
        for name, root in roots.items():
            for path in sorted(_archived(root)):
                parts = path.relative_to(root).parts
                if (source := open_below(root, *parts)) is not None:
                    with source, archive.open(_member("/".join((name, *parts))), "w") as target:
                        shutil.copyfileobj(source, target)


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.compress_type = zipfile.ZIP_DEFLATED  # which it does not take from its archive
    return member


def unpack(path: Path, into: Path) -> dict[str, Any]:
    """Write the runs of an archive, and the files of its sweep, into a folder; returns what it is about.

    Raises UserError for any other file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            about: dict[str, Any] = json.loads(archive.read(ABOUT))
            runs = [name for name in archive.namelist() if _RUN.match(name)]
            archive.extractall(into, runs)  # never outside of it, and no links
            for run in into.glob("runs/*"):
                for line in lines(run):  # which may be a stranger's
                    if not isinstance(line, StepEvent):
                        TypeAdapter(type(line)).validate_python(vars(line))
            files = about.get("files", {})
            for name, text in files.items():
                if not (file := (into / name).resolve()).is_relative_to(into.resolve()):
                    raise ValueError(f"{name!r} lies outside")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            if files:  # the sweep's file is the first
                about["sweep"] = f"./{next(iter(files))}"
            return {"sweep": str(about["sweep"]), "overrides": list(map(str, about["overrides"]))}
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        LookupError,
        AttributeError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        why = f"a record {first_fault(error.errors())}" if isinstance(error, ValidationError) else error
        raise UserError(f"{path} cannot be read as a file of `cppo archive` ({why}): name one") from None


def _archived(root: Path) -> Iterable[Path]:
    for at, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _NOT_ARCHIVED.fullmatch(name)]
        yield from (Path(at, name) for name in names if not _NOT_ARCHIVED.fullmatch(name))
