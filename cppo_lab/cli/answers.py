"""`cppo samples` and `cppo replay`: what a run has kept of its answers, from its folder or the tracking store."""

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cppo_lab.cli.answer import Exit, answer, known_store
from cppo_lab.cli.parser import RUN, CommandParser
from cppo_lab.errors import UserError, printable
from cppo_lab.files import runs_folder
from cppo_lab.plugins import entry_points
from cppo_lab.tracking import address

if TYPE_CHECKING:
    from cppo_lab.answers.records import AnswerFiles
    from cppo_lab.answers.texts import Sample, Texts
    from cppo_lab.sweep.plan import Found

SWITCH = "tracking.answers.keep=true"


def samples(options: argparse.Namespace) -> int:
    """Print prompts and responses of a validated step."""
    from cppo_lab.answers.records import read_texts

    run, files = _files(options.run)
    step = _step(run.run_id, files, "texts", options.step)
    texts = read_texts(files, step)
    assert texts is not None  # its name was listed
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
    answer(options, values, "\n".join(_as_lines(run.run_id, texts, chosen)))
    return Exit.DONE


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
        worth = (
            "" if sample.reward is None else f", reward {sample.reward:g}, advantage {sample.advantage:.3g}"
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


def replay(options: argparse.Namespace) -> int:
    """Print what another rule keeps of the tokens of some training responses."""
    from cppo_lab.analysis.replay import as_lines, as_values, compare
    from cppo_lab.analysis.replay import replay as replayed
    from cppo_lab.answers.records import read_tokens

    run, files = _files(options.run)
    step = _step(run.run_id, files, "tokens", options.step)
    tokens = read_tokens(files, step)
    assert tokens is not None  # its name was listed
    given = dict(_assignment(text) for text in options.overrides)
    divergence = given.pop("divergence", None)
    if options.rule is None or options.rule == tokens.rule.name:
        name, path, constants = tokens.rule.name, tokens.rule.path, dict(tokens.rule.constants)
    else:
        name, path, constants = options.rule, _path(options.rule), _configured(options.rule, run.config)
    result = replayed(
        tokens, name, constants | given, path=path, divergence=None if divergence is None else str(divergence)
    )
    compared = compare(tokens, result)
    values = {"run": run.run_id, **as_values(tokens, result, compared)}
    answer(options, values, "\n".join([f"run {run.run_id}", *as_lines(tokens, result, compared)]))
    return Exit.DONE


def _files(beginning: str) -> "tuple[Found, AnswerFiles]":
    """The run, and its files: those of its folder, else the tracking store's."""
    from cppo_lab.answers.records import FolderFiles
    from cppo_lab.sweep.plan import find_recorded_run

    runs, uri = runs_folder(), known_store(address.tracking_uri())
    run = find_recorded_run(beginning, runs)
    files = FolderFiles(runs / run.run_id)
    if files.names():
        return run, files
    from cppo_lab.tracking.read import stored_files  # MLflow

    stored = stored_files(uri, str(run.config.get("core")), run.run_id)
    return run, files if stored is None else stored


def _step(run_id: str, files: "AnswerFiles", kind: str, asked: int | None) -> int:
    """The step that was asked for, or the newest. Raises UserError if the run has no such file."""
    from cppo_lab.answers.records import steps_with

    steps = steps_with(files, kind)
    if not steps:
        raise UserError(
            f"run {run_id} has kept no {kind}: runs keep them from their first validation on if {SWITCH}"
        )
    if asked is None:
        return steps[-1]
    if asked not in steps:
        raise UserError(f"--step {asked}: run {run_id} has {kind} of the steps {', '.join(map(str, steps))}")
    return asked


def _assignment(text: str) -> tuple[str, float | int | str]:
    """`delta=0.1` as a name and its value."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UserError(f"{text!r}: must be KEY=VALUE, such as delta=0.1 or divergence=binary_kl")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _path(rule: str) -> str | None:
    """Where a rule of another package is, as in a run's configuration."""
    from cppo_lab.rules import ENTRY_POINT, GROUP, RULES, from_environment

    if rule in RULES:
        return None
    return from_environment(rule) or (ENTRY_POINT if rule in entry_points(GROUP) else None)


def _configured(rule: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The constants that a run of `rule` has on the same core and model; none if it cannot be composed."""
    from cppo_lab.rules import RULES
    from cppo_lab.sweep.compose import compose

    if rule not in RULES:
        return {}
    model = config.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    try:
        run = compose([f"core={config.get('core')}", f"model={name}", f"rule={rule}"]).run
    except UserError:
        return {}
    rollout = config.get("rollout")
    width = rollout.get("max_response_length") if isinstance(rollout, dict) else None
    return run.rule.arguments(width if isinstance(width, int) else run.rollout.max_response_length)


def samples_arguments(command: CommandParser) -> None:
    command.set_defaults(command=samples)
    _add_run(command)
    command.add_argument("--problem", metavar="ID", help="print only this problem (id or prefix)")
    command.add_argument("--wrong", action="store_true", help="print only wrong responses")


def replay_arguments(command: CommandParser) -> None:
    command.set_defaults(command=replay)
    _add_run(command)
    command.add_argument("--rule", metavar="NAME", help="rule to apply (default: the run's own)")
    command.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="constants of the rule (delta=0.1), or divergence=binary_kl to use another D_t of the sampled tokens",
    )


def _add_run(command: CommandParser) -> None:
    command.add_argument("run", metavar="RUN", help=RUN)
    command.add_argument(
        "--step", type=int, metavar="S", help="a step with a validation (default: the newest)"
    )
