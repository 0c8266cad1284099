"""How `cppo` ends, for scripts."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of every command; `docs/commands.md` and `cppo --help` have them too."""

    DONE = 0
    NO = 1
    USAGE = 2
    STORE_AWAY = 3
    RUNS_FAILED = 4
    PACKAGE = 5
    INTERRUPTED = 130
    READER_GONE = 141


MEANINGS = {
    Exit.DONE: "done; for commands that answer a question: yes",
    Exit.NO: "not everything is done (runs are left, partial or cancelled); for commands that answer a question: no",
    Exit.USAGE: "bad input: an argument, a key, a file or a folder; nothing was started",
    Exit.STORE_AWAY: "the tracking store does not exist, cannot be reached or cannot be read",
    Exit.RUNS_FAILED: "runs have failed with an error",
    Exit.PACKAGE: "a package that the command needs is not installed",
    Exit.INTERRUPTED: "interrupted; run the same command to continue",
    Exit.READER_GONE: "the program that reads the output has exited, as `head` does early",
}


def codes_text() -> str:
    """The codes as lines of a help text."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())
