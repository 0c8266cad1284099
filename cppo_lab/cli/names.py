"""`cppo list`, `cppo new` and `cppo completion`: what a command line can name, and a first sweep file."""

import json
import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path

from cppo_lab.cli.command import COMMANDS, answer, build_parser, width
from cppo_lab.errors import UserError
from cppo_lab.files import replace_file
from cppo_lab.sweep.groups import groups

TEMPLATE = Path(__file__).parents[1] / "sweep" / "template.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # as the types of sweep files have it
_RUN = re.compile(r"[0-9a-f]{12}")


def list_names(options: Namespace) -> int:
    """A line on each name that a command or a sweep file can take."""
    if options.name == "plan":
        if any((options.json, options.csv, options.power, options.state)):
            raise UserError("name a sweep, before the options: `cppo list` lists them")
        options.what = "sweeps"
    if options.overrides and options.what != "keys":
        raise UserError(
            f"cppo list {options.what} takes no overrides; cppo list keys {options.overrides[0]} does"
        )
    rows = _rows(options)
    names = [str(next(iter(row.values()))) for row in rows]
    indent = max(map(len, names), default=0)
    lines = (
        f"{name:<{indent}}  {_shown(row)}"[: width()].rstrip() for name, row in zip(names, rows, strict=True)
    )
    return answer(options, {options.what: rows}, "\n".join(lines))


def _shown(row: dict[str, object]) -> str:
    _, *texts = row.values()
    if "default" in row:
        default = row["default"] if isinstance(row["default"], str) else json.dumps(row["default"])
        return f"{default:<12}  {row['meaning']}"
    return " ".join(
        f"{text}".rstrip(".") + "." if not f"{text}".endswith("?") else f"{text}" for text in texts if text
    )


def _rows(options: Namespace) -> list[dict[str, object]]:
    """What there is of the kind that is asked for; the first value of each row is its name."""
    from cppo_lab.sweep.source import key_words, option_words, sweeps

    if options.what == "sweeps":
        return [dict(row) for row in sweeps()]
    if options.what == "keys":
        from cppo_lab.sweep.compose import values

        words = key_words()
        return [
            {"key": key, "default": value, "meaning": words.get(key, "")}
            for key, value in values(options.overrides).items()
        ]
    group = options.what.removesuffix("s")
    words = option_words(group)
    return [{"name": name, "meaning": words.get(name, "")} for name in groups()[group]]


def new(options: Namespace) -> int:
    """Write a sweep file that runs as it is."""
    from cppo_lab.sweep.source import sweep_files

    name = options.sweep_name.removesuffix(".yaml")
    path = Path(f"{name}.yaml")
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{options.sweep_name!r} is no name of a sweep: use letters (a to z), digits, `_` and `-`, at most 100, "
            "beginning with a letter or digit"
        )
    if name in sweep_files():
        raise UserError(f"{name!r} is a sweep that comes with the product: give yours another name")
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} exists: edit it, or give the new sweep another name")
    replace_file(path, TEMPLATE.read_text(encoding="utf-8").replace("NAME", name))
    text = f"wrote {path}: edit it; then cppo plan {path}, cppo launch {path} and cppo report {path}"
    return answer(options, {"sweep": name, "file": str(path)}, text)


def completion(options: Namespace) -> int:
    """Print the script of a shell."""
    from argcomplete.shell_integration import shellcode

    script = shellcode(["cppo"], shell=options.shell)
    return answer(options, {"shell": options.shell, "script": script}, script)


def complete() -> None:
    """Tell the shell how its command line can go on, and end the process."""
    import argcomplete

    line = os.environ["COMP_LINE"]
    if export := re.match(
        r"\s*\S+\s+export\s+(?=[0-9a-f]+(\s|$))", line
    ):  # `export RUN` is `export model RUN`
        os.environ["COMP_LINE"] = f"{export[0]}model {line[export.end() :]}"
        os.environ["COMP_POINT"] = str(int(os.environ["COMP_POINT"]) + len("model "))
    parser = build_parser(next((word for word in line.split() if word in COMMANDS), ""))
    for command in parser.leaves.values():
        for action in command._actions:
            if completer := _COMPLETERS.get(action.dest):
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _sweep_names(**_: object) -> Iterable[str]:
    from cppo_lab.sweep.source import sweep_files

    return sweep_files()


def _sweeps_and_runs(prefix: str, **_: object) -> Iterable[str]:
    """A run may stand where a sweep does; a sweep is what is looked for."""
    return [*_sweep_names(), *(_run_ids() if len(prefix) >= 2 else ())]


def _variants(prefix: str, parsed_args: Namespace, **_: object) -> Iterable[str]:
    """`variant=NAME`; of several names, the last is being typed."""
    from cppo_lab.sweep.source import variants

    names = variants(parsed_args.sweep) if getattr(parsed_args, "sweep", None) else []
    chosen = prefix.removeprefix("variant=").split(",")[:-1]
    return [f"variant={','.join([*chosen, name])}" for name in names if name not in chosen]


def _run_ids(**_: object) -> Iterable[str]:
    """Ids of the runs that have folders here."""
    try:
        return filter(_RUN.fullmatch, os.listdir("runs"))  # noqa: PTH208 - ten thousand names, of which none needs to be a Path
    except OSError:
        return []


_COMPLETERS: dict[str, Callable[..., Iterable[str]]] = {
    "sweep": _sweeps_and_runs,
    "within": _sweep_names,
    "overrides": _variants,
    **dict.fromkeys(("run", "left", "right"), _run_ids),
    "rule": lambda **_: groups()["rule"],
    "core": lambda **_: groups()["core"],
}
