"""What runs leave: `cppo export`, what a run has learned, as a folder that transformers loads, and what a sweep has
logged, as tables; `archive` and `evaluate`; `samples` and `replay`, the answers that a run has kept.
"""

import json
import os
import re
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from cppo_lab import schema
from cppo_lab.cli.command import PARQUET, Exit, answer, typed
from cppo_lab.cli.training import planned
from cppo_lab.core_records import Resources, core_of, load_part
from cppo_lab.errors import UserError, counted, printable, say
from cppo_lab.files import appearing, read_object, replacing, require_free, runs_folder
from cppo_lab.plugins import install_extra
from cppo_lab.runs import export
from cppo_lab.runs.folder import is_locked, read_status
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.spool import newest_record
from cppo_lab.runs.state import RunFolder
from cppo_lab.sweep.compose import compose, data_of, rule_on
from cppo_lab.sweep.file import files_of
from cppo_lab.sweep.overrides import parse_override
from cppo_lab.sweep.plan import is_run_id, recorded_answers
from cppo_lab.sweep.status import run_by_beginning, run_statuses
from cppo_lab.tracking import address

if TYPE_CHECKING:
    from cppo_lab.answers.texts import Sample, Texts

ABOUT = "about.json"
_MARK = "cppo export metrics"  # in ABOUT: only such a folder is replaced
_LARGEST = 10_000_000  # bytes of it


def export_model(options: Namespace) -> int:
    """Write a run's best checkpoint in Hugging Face's format."""
    require_free(options.out)
    runs = runs_folder()
    run_id = run_by_beginning(runs, options.run)
    # Slurm knows of runs on machines whose locks are not seen here.
    [run] = run_statuses(runs, {run_id: {}})
    if run.state == schema.RUNNING:
        raise export.being_trained(run_id)
    place = export.export(runs, run_id, options.out, _say)
    return answer(options, {"run_id": run_id, "folder": str(place)}, place)


def export_metrics(options: Namespace) -> int:
    """Write what the runs of a sweep have logged as Parquet or CSV, to a folder that appears as a whole or not at all:
    `runs`, `history` and, if a run kept outcomes, `outcomes`, as `cppo_lab.load` gives them. ABOUT is beside them.
    """
    from cppo_lab.sweep.results import load

    form = options.format
    if form == PARQUET and find_spec("pyarrow") is None:
        raise UserError(
            f"--format {form}: package 'pyarrow' is not installed: {install_extra('export')}, or take --format csv"
        )
    is_earlier = read_object(options.out / ABOUT, _LARGEST).get("made_by") == _MARK
    try:
        place = options.out.resolve() if options.force and is_earlier else require_free(options.out)
    except UserError as error:
        hint = "; --force replaces an earlier export of metrics" if is_earlier else ""
        raise UserError(f"{error}{hint}") from None
    results = load(options.sweep, *options.overrides, source=options.source)
    states = results.runs.drop_duplicates("run_id")["state"].value_counts().to_dict()
    listed = ", ".join(f"{count} {state}" for state, count in states.items())
    _say(f"reading {counted(sum(states.values()), 'run')}: {listed}")
    about = {
        "sweep": results.name,
        "overrides": options.overrides,
        "read_from": results.place,
        "states": states,
    }
    history = results.history(None if options.metrics is None else options.metrics.split(","))
    frames = {f"runs.{form}": results.runs, f"history.{form}": history}
    if options.source != "paper" and not (outcomes := results.outcomes()).empty:
        frames[f"outcomes.{form}"] = outcomes
    rows = {file: len(frame) for file, frame in frames.items()}
    with appearing(place, replace=options.force) as folder:
        for file, frame in frames.items():
            _say(f"{file}: {len(frame):,} rows")
            if form == PARQUET:
                frame.to_parquet(folder / file, engine="pyarrow", index=False)
            else:
                frame.to_csv(folder / file, index=False, lineterminator="\n")
        units = {}
        for name in map(str, history["metric"].cat.categories):
            if schema.parse_validation_metric(name) is not None:
                units[name] = "fraction"
            elif name in schema.METRIC_BY_NAME:
                units[name] = schema.METRIC_BY_NAME[name].unit
        entries = {"made_by": _MARK, "format": form, **about, "rows": rows, "units": units}
        (folder / ABOUT).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return answer(options, {"folder": str(place), "format": form, **about, "rows": rows}, place)


def archive(options: Namespace) -> int:
    """Write what a sweep's runs have recorded, and its report, into a file."""
    from cppo_lab.sweep.claims import not_awaited

    plan, uri = planned(options)
    if options.out.exists():
        raise UserError(f"--out {options.out} exists: name another file, or remove it yourself")
    folders = {run.run_id: runs_folder() / run.run_id for run in plan.runs}
    places = {i: RunFolder(path).result or path for i, path in folders.items() if not is_locked(path)}
    ended = {i: place for i, place in places.items() if newest_record(place) is not None}
    if not ended:
        raise UserError(f"no run of {plan.name} has ended here: launch it, or work where its runs are")
    roots = {f"runs/{i}": path for i, path in ended.items()} | {"report": Path("reports/build") / plan.name}
    values = {
        "runs": [*ended],
        "sweep": options.sweep,
        "overrides": options.overrides,
        "code": code_version(),
    }
    paths = {os.path.normpath(path.absolute()): path for path in files_of(options.sweep)}
    texts = {place: path.read_text(encoding="utf-8") for place, path in paths.items()}
    root = os.path.commonpath(map(os.path.dirname, texts)) if texts else ""
    files = {}
    for path, text in texts.items():
        for part in texts:  # elsewhere, a study finds its parts by relative paths alone
            beside = os.path.relpath(part, Path(path).parent)
            text = re.sub(rf"(?<![\w./-]){re.escape(part)}(?![\w./-])", beside.replace("\\", r"\\"), text)
        files[os.path.relpath(path, root)] = text
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(options.out) as file:
        export.archive(roots, {**values, "files": files}, file)
    unfinished = {i for i, place in ended.items() if read_status(place).get("status") not in schema.FINISHED}
    absent = folders.keys() - ended.keys()
    spare = not_awaited(plan, uri) if unfinished or absent else set()
    partial = len(unfinished - spare)
    text = f"{options.out}: {len(ended)} of {counted(len(folders) - len(absent & spare), 'run')}"
    text += f", {partial} of them without a result" if partial else ""
    answer(options, {"file": str(options.out), **values}, text)
    return Exit.NO if partial or absent - spare else Exit.DONE


def evaluate(options: Namespace) -> int:
    """Score the best checkpoints of finished runs on a further benchmark, and record the scores with the runs."""
    from cppo_lab.tracking.upload import upload

    runs, rows, overrides = runs_folder(), [], ()
    if is_run_id(options.sweep):
        run_ids, uri = [run_by_beginning(runs, options.sweep)], address.known_store(address.tracking_uri())
        overrides = options.overrides
    else:
        plan, uri = planned(options)
        run_ids = [
            run.run_id for run in plan.runs if read_status(runs / run.run_id).get("status") in schema.FINISHED
        ]
    if not run_ids:
        raise UserError(
            f"{options.sweep}: none of its runs is finished here: see `cppo status {typed(options)}`"
        )
    for run_id in run_ids:
        subject = export.read_subject(runs, run_id)
        core, model = subject.spec.core, subject.spec.model.name
        if core_of(core).fresh_process and len(run_ids) > 1:
            raise UserError(f"core={core} evaluates one run in each process: name one (`cppo status`)")
        load_part(core, "evaluator")
        # For its data alone: a divergence over the vocabulary of the training need not fit it.
        data = (*data_of(options.benchmark), "divergence=binary_tv", *overrides)
        other = compose([f"core={core}", f"model={model}", *data])
        resources = Resources(runs, runs / run_id, layout=other.layout, paths=other.paths, doing=_say)
        step, scores = export.evaluate(subject, other.run, resources)
        rows.append({"run_id": run_id, "name": subject.name, "step": step, "scores": scores})
        if not options.json:
            listed = ", ".join(f"{benchmark} {100 * score:.1f} %" for benchmark, score in scores.items())
            print(f"{run_id}  {subject.name}  step {step}: {listed}", flush=True)
    upload([runs / run_id for run_id in run_ids], uri)
    return answer(options, {"benchmark": options.benchmark, "runs": rows})


def _say(activity: str, done: int | None = None, of: int | None = None) -> None:
    say(f"cppo: {activity}")


def samples(options: Namespace) -> int:
    """Print prompts and responses of a validated step."""
    run, texts = recorded_answers(options.run, runs_folder(), "texts", options.step)
    step = texts.step
    chosen = [
        sample
        for sample in texts.samples
        if sample.problem.startswith(options.problem or "") and not (options.wrong and sample.right)
    ]
    if options.problem and not any(sample.problem.startswith(options.problem) for sample in texts.samples):
        ids = ", ".join(dict.fromkeys(sample.problem for sample in texts.samples))
        raise UserError(f"--problem {options.problem!r}: step {step} has answers to {ids or 'no problem'}")
    samples = [vars(sample) for sample in chosen]
    values = {"run": run.run_id, "step": step, "left_out": texts.left_out, "samples": samples}
    return answer(options, values, "\n".join(_as_lines(run.run_id, texts, chosen)))


def _as_lines(run_id: str, texts: "Texts", chosen: "list[Sample]") -> Iterator[str]:
    """What a terminal shows: nothing in a text can steer it."""
    prompt = None
    for sample in chosen:
        if (sample.kind, sample.problem, sample.prompt) != prompt:
            prompt = (sample.kind, sample.problem, sample.prompt)
            yield f"{sample.kind} {printable(sample.problem)}" + (
                "" if sample.truth is None else f", true answer {printable(sample.truth)}"
            )
            yield from (f"    {printable(line)}" for line in sample.prompt.splitlines())
        worth = ("" if sample.reward is None else f", reward {sample.reward:g}") + (
            "" if sample.advantage is None else f", advantage {sample.advantage:.3g}"
        )
        answer = "no answer" if sample.answer is None else f"answer {printable(sample.answer)}"
        yield (
            f"  draw {sample.draw}: {'right' if sample.right else 'wrong'}, {answer}{worth}, {sample.length} tokens, "
            f"{printable(sample.stop)}"
        )
        yield from (f"    {printable(line)}" for line in sample.response.splitlines())
        yield ""
    omitted = f"; {texts.left_out} were omitted for lack of space" if texts.left_out else ""
    yield f"{len(chosen)} of {len(texts.samples)} samples of run {run_id}, step {texts.step}{omitted}"


def replay(options: Namespace) -> int:
    """Print what another rule keeps of the tokens of some training responses."""
    from cppo_lab.analysis.replay import as_lines, comparison
    from cppo_lab.analysis.replay import replay as replayed

    run, tokens = recorded_answers(options.run, runs_folder(), "tokens", options.step)
    given = {}
    for override in map(parse_override, options.overrides):
        if override.kind == "other" or not override.right or isinstance(override.value, list):
            raise UserError(
                f"{override.text!r}: must be KEY=VALUE, such as delta=0.1 or divergence=binary_kl"
            )
        given[override.key] = override.value
    divergence = given.pop("divergence", None)
    rule, path, constants = None, None, dict(tokens.rule.constants)
    if options.rule not in (None, tokens.rule.name):
        rule = options.rule
        path, constants = rule_on(rule, run.config)
    result = replayed(
        tokens, rule, constants | given, path=path, divergence=None if divergence is None else str(divergence)
    )
    compared = comparison(tokens, result)
    text = "\n".join([f"run {run.run_id}", *as_lines(compared)])
    return answer(options, {"run": run.run_id, **compared}, text)
