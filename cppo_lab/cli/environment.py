"""`cppo data` and `cppo doctor`: what runs need around them."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from cppo_lab import schema
from cppo_lab.cli.command import Exit, answer
from cppo_lab.errors import UserError, say
from cppo_lab.files import runs_folder
from cppo_lab.plugins import NAME
from cppo_lab.tracking import address

if TYPE_CHECKING:
    from cppo_lab.data.prepare import FileRecord


def data_prepare(options: Namespace) -> int:
    """Write training and validation sets."""
    from cppo_lab.data.prepare import prepare, summary
    from cppo_lab.sweep.overrides import shell_form

    validation: dict[str, Path] = {}
    for text in options.validation:
        name, equals, path = text.partition("=")
        is_new = NAME.fullmatch(name) and name not in ("train", schema.MEAN, *validation)
        if not equals or not is_new or "." in name or not name[0].isalpha() or not Path(path).is_file():
            raise UserError(
                f"--validation {text!r}: give NAME=FILE, an existing file, and each name once; a name begins with a "
                f"letter, has no dot, and is neither 'train' nor {schema.MEAN!r}"
            )
        validation[name] = Path(path)
    records = prepare(options.source, options.out, say, validation, options.skip)
    text = summary(records)
    if options.source not in ("sample", "hub"):
        train, *others = records
        keys = [shell_form("data.train", str(options.out / train))]
        keys += [shell_form(f"data.validation.{Path(file).stem}", str(options.out / file)) for file in others]
        if all(keys):
            text += f"\nto train on it: core=verl data=files {' '.join(keys)}"
    return answer(options, _file_values(options.out, records), text)


def data_check(options: Namespace) -> int:
    """Compare prepared data with its checksums."""
    from cppo_lab.data.prepare import check_folder, summary

    records = check_folder(options.folder)
    return answer(options, _file_values(options.folder, records), summary(records))


def _file_values(folder: Path, records: "dict[str, FileRecord]") -> dict[str, object]:
    return {"folder": str(folder), "files": {name: vars(record) for name, record in records.items()}}


def doctor(options: Namespace) -> int:
    """Say what this machine has and lacks for a run; 0 only if the run could start here."""
    from cppo_lab.sweep.compose import compose
    from cppo_lab.sweep.doctor import examine, lines, ready

    composed = compose([f"core={options.core}", *options.overrides])
    checks = examine(composed, address.tracking_uri(composed.tracking.uri), runs_folder())
    core, model = composed.run.core, composed.run.model.name
    verdict = "can start here." if ready(checks) else "cannot start here: see the lines marked missing."
    answer(
        options,
        {"core": core, "model": model, "ready": ready(checks), "checks": list(map(vars, checks))},
        "\n".join([*lines(checks), f"\nA run of model={model} with core={core} {verdict}"]),
    )
    return Exit.DONE if ready(checks) else Exit.NO
