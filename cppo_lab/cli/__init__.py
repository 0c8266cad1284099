"""The `cppo` command. Only the standard library is imported before a subcommand is chosen.

Guarantees of this package:

- A subcommand loads its files only, and help none of them, so that each answers at once.
- A user's mistake is a line on standard error with a remedy, and no traceback; `command.py` has the exit codes.
- `--json` prints one object on standard output, with the same heading for every command, errors included.
- Functions here read arguments and print. What a command does is in the other rooms.

Begin with `command.py` (all subcommands with their arguments, and the file of each) and `main` below, then the
subcommand's file, which has its function: `training.py` for `plan`, `show` and `launch`. docs/commands.md is for users.
"""

import contextlib
import errno
import io
import os
import re
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence

from cppo_lab.errors import ALSO, StoreAway, UserError, announcing_interrupt, drop, message, say

INTERRUPTED = "interrupted; run the same command to continue"


def _leave() -> None:
    """End by Ctrl-C in the middle of an import, where an exception is lost, or is a traceback."""
    os.write(2, f"cppo: {INTERRUPTED}\n".encode())
    os._exit(130)


with announcing_interrupt(_leave):
    from cppo_lab.cli.command import Exit, UsageError, carry_out, document, exclusive_output, parse, passing
    from cppo_lab.files import redacted, share_with_group

_REMEDIES = {
    errno.EISDIR: "move the folder away: there should be a file",
    errno.ENOTDIR: "move the file away: there should be a folder",
    errno.EEXIST: "move it away",
    errno.ELOOP: "remove the circular link",
    errno.ENAMETOOLONG: "take a shorter name",
    errno.EACCES: "ask for permission, or work in another folder",
    errno.EROFS: "work in a folder that you can write to",
    errno.ENOSPC: "free space on the disk, then run the same command to continue",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), then run the same command to continue",
    errno.EDQUOT: "free space in your quota, then run the same command to continue",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code (`command.Exit`); a mistake in the arguments raises SystemExit."""
    os.environ["PYTHONSAFEPATH"] = (
        "1"  # no Python child, however it is started, imports files of the working folder
    )
    # Packages warn of each other: as errors, which users ask for in their own tests, warnings would end runs.
    if any(option.strip().startswith("e") for option in sys.warnoptions):
        sys.warnoptions[:] = [re.sub(r"^\s*e\w*", "default", option) for option in sys.warnoptions]
        os.environ["PYTHONWARNINGS"] = ",".join(sys.warnoptions)
        filters = [("default" if action == "error" else action, *of) for action, *of in warnings.filters]
        warnings.resetwarnings()
        warnings.filters.extend(filters)  # type: ignore[attr-defined]
    os.environ["MPLBACKEND"] = "agg"  # a notebook's shell names its own, which matplotlib here may not know
    # Open the standard streams that are closed (`>&-`): the next file would take their number, and what is printed
    # would be written into it.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, errors="backslashreplace", closefd=False)  # noqa: SIM115  it stays open
            setattr(sys, name, stream)
    # A name that the terminal's encoding lacks must not end a command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ:
        from cppo_lab.cli.names import complete

        complete()
    try:
        # A process of somebody else's is theirs to end.
        with announcing_interrupt(_leave) if arguments is None else contextlib.nullcontext():
            options = parse(given)
    except UsageError as error:
        _refuse(str(error))
        say(error.usage.rstrip("\n"))
        if "--json" in given:
            refused = document(Namespace(name=error.command), Exit.USAGE, str(error))
            _run(lambda: sys.stdout.write(f"{refused}\n"))
        raise SystemExit(Exit.USAGE) from None
    if not options.json:
        return int(_run(lambda: carry_out(options))[0])

    def answer_in_json() -> int:
        with exclusive_output() as out:

            def print_answer(code: int = Exit.DONE, error: str | None = None) -> None:
                if not options.answered and (options.answer is not None or error is not None):
                    out.write(document(options, code, error) + "\n")
                    out.flush()
                    options.answered = True

            options.answer, options.answered, options.answer_now = None, False, print_answer
            code, wrong = _run(lambda: carry_out(options))
            print_answer(code, wrong)
        return code

    return int(_run(answer_in_json)[0])


def _run(command: Callable[[], int]) -> tuple[int, str | None]:
    """The exit code of a command, and what was wrong with it, which is also on standard error."""
    try:
        share_with_group()
        code = command()
        sys.stdout.flush()
    except UserError as error:
        code = Exit.STORE_AWAY if isinstance(error, StoreAway) else Exit.USAGE
        return code, _refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cppo_lab"):
            raise
        from cppo_lab.plugins import remedy

        name = (error.name or "").split(".")[0]
        return Exit.PACKAGE, _refuse(f"package {name!r} is not installed: {remedy(name)}")
    except BrokenPipeError:  # `cppo plan ... | head`
        drop(sys.stdout)
        return Exit.READER_GONE, None
    except OSError as error:  # a folder that cannot be written, a full disk, also below the output
        try:
            sys.stdout.flush()
        except OSError:
            drop(sys.stdout)
        how = _REMEDIES.get(error.errno or 0)
        if error.filename is not None:
            place = f"{error.filename}: {error.strerror}"
            text = f"{place}: {how or 'check what is there, or work in another folder'}"
        else:
            # Without a name it is the working folder's, which was removed.
            how = "go to a folder that exists" if error.errno == errno.ENOENT else how
            text = f"{error.strerror}: {how}" if how else str(error)
        return Exit.USAGE, _refuse(text)
    except KeyboardInterrupt:
        say(f"cppo: {INTERRUPTED}")
        return Exit.INTERRUPTED, INTERRUPTED
    return code, None


def _refuse(text: str) -> str:
    """Say in a line what is wrong; names in it may be anybody's, and addresses may have passwords."""
    line = redacted(message(text))
    passing("")
    shown = line.replace(ALSO, "\n  also: ") if sys.stderr.isatty() else line  # for a reader, a line each
    say(f"cppo: error: {shown}")
    return line
