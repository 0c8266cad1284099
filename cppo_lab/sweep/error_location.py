"""Locates the cause of an error in composing a run in its sweep file."""

from collections.abc import Sequence
from dataclasses import dataclass

from cppo_lab.errors import UserError
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.overrides import override, read


@dataclass(frozen=True, slots=True)
class Setting:
    """A key that a sweep file sets: `where` in the file, and its configuration key."""

    where: str
    key: str
    value: Scalar

    @property
    def text(self) -> str:
        """The setting as an override."""
        return override(self.key, self.value)


def located(error: UserError, source: str, file: Sequence[Setting], typed: Sequence[str]) -> UserError:
    """The error with the file and key that caused it, or unchanged if the command line is at fault.

    `file` are the settings of the run from the file, `typed` the overrides from the command line. The cause is the last
    setting whose removal changes the outcome of composing.
    """
    texts = [setting.text for setting in file]
    # The core is a choice, not a mistake: the file has to support it.
    core = [text for text in typed if read(text).sets("core")]
    if len(typed) > len(core) and _outcome([*texts, *core]) != str(error):
        return error
    for setting in reversed(file):
        if str(error).startswith((f"configuration: {setting.key}=", f"unknown key {setting.key!r}")):
            return _named(error, source, setting)
    for i in reversed(range(len(file))):
        if _outcome([*texts[:i], *texts[i + 1 :], *typed]) != str(error):
            return _named(error, source, file[i])
    return UserError(f"sweep {source}: {str(error).removeprefix('configuration: ')}")


def _named(error: UserError, source: str, setting: Setting) -> UserError:
    text = str(error).removeprefix("configuration: ")
    said = f"{setting.key}={setting.value!r}"
    if text.startswith(said):
        return UserError(f"sweep {source}: {setting.where}={text.removeprefix(setting.key + '=')}")
    return UserError(f"sweep {source}: {setting.where}={setting.value!r}: {text}")


def _outcome(overrides: Sequence[str]) -> str:
    """The error of overrides; empty if there is none."""
    try:
        compose(overrides)
    except UserError as error:
        return str(error)
    return ""
