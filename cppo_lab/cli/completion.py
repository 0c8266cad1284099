"""`cppo completion SHELL`, and the words that the shell may put in the place of the one being typed.

The scripts call `cppo _complete WORDS...`, which imports neither a trainer nor a tracking store.
"""

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cppo_lab import schema
from cppo_lab.cli.answer import Exit, answer
from cppo_lab.cli.parser import CommandParser, subcommands, with_action
from cppo_lab.sweep.groups import groups

COMPLETE = "_complete"  # what the scripts call
_LENGTH = 12  # digits of a run's id

BASH = """\
_cppo() {
    local line="${COMP_LINE:0:COMP_POINT}" typed words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    typed="${words[${#words[@]}-1]}"
    mapfile -t COMPREPLY < <(cppo _complete "${words[@]:1}" 2>/dev/null)
    if [[ $typed == *=* && $COMP_WORDBREAKS == *=* ]]; then  # for bash the word begins behind the sign
        COMPREPLY=("${COMPREPLY[@]#"${typed%%=*}="}")
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -o default -F _cppo cppo
"""
ZSH = """\
#compdef cppo
_cppo() {
    local -a found keys others
    found=("${(@f)$(cppo _complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    keys=("${(@M)found:#*=}")
    others=("${(@)found:#*=}")
    if [[ -z "${found[*]}" ]]; then
        _files
        return
    fi
    (( ${#keys} )) && compadd -S '' -- "${keys[@]}"
    (( ${#others} )) && compadd -- "${others[@]}"
}
compdef _cppo cppo
"""
FISH = """\
function __cppo_complete
    set -l words (commandline -opc) (commandline -ct | string collect --allow-empty)
    cppo _complete $words[2..-1] 2>/dev/null
end
complete -c cppo -a '(__cppo_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(options: argparse.Namespace) -> int:
    """Print the script of a shell."""
    if options.json:
        answer(options, {"shell": options.shell, "script": SCRIPTS[options.shell]})
    else:
        print(SCRIPTS[options.shell], end="")
    return Exit.DONE


def complete(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """What the last of `words` (those behind `cppo`; it may be empty) may become."""
    before, typed = list(with_action(words[:-1])), words[-1] if words else ""
    while before and before[0] in subcommands(parser):
        parser = subcommands(parser)[before.pop(0)]
    if below := subcommands(parser):
        return _that_begin([*(name for name in below if not name.startswith("_")), *_options(parser)], typed)
    given, awaiting = _places(parser, before)
    if awaiting is not None:
        return _values(awaiting.dest, awaiting.choices, typed, given)
    if typed.startswith("-"):
        return _that_begin(_options(parser), typed)
    places = [action for action in parser._actions if not action.option_strings]
    if not places:
        return []
    place = places[min(len(given), len(places) - 1)]
    return _values(place.dest, place.choices, typed, given)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def _places(
    parser: argparse.ArgumentParser, before: Iterable[str]
) -> tuple[list[str], argparse.Action | None]:
    """The positional words so far, and the option that the next word is the value of."""
    options = {name: action for action in parser._actions for name in action.option_strings}
    given, awaiting = [], None
    for word in before:
        if awaiting is not None:
            awaiting = None
        elif word.startswith("-"):
            action = options.get(word)
            awaiting = action if action is not None and action.nargs is None else None
        else:
            given.append(word)
    return given, awaiting


def _values(place: str, choices: Iterable[str] | None, typed: str, given: Sequence[str]) -> list[str]:
    """What an argument called `place` may be; nothing where the shell should offer files."""
    from cppo_lab.sweep.words import sweep_names

    if choices is not None:
        return _that_begin(choices, typed)
    if place == "sweep":
        files = sorted(path.name for path in Path().glob("*.yaml"))
        runs = _runs() if len(typed) >= 2 else []  # where a run may stand too; a sweep is what is looked for
        return _that_begin([*sweep_names(), *files, *runs], typed)
    if place == "within":
        return _that_begin(sweep_names(), typed)
    if place in ("run", "left", "right"):
        return _that_begin(_runs(), typed)
    if place in ("before", "after"):
        built = Path("reports/build")
        return _that_begin(sorted(path.name for path in built.iterdir()) if built.is_dir() else [], typed)
    if place == "state":
        return _lists(schema.STATES, typed)
    if place == "rule":
        return _that_begin(groups()["rule"], typed)
    if place == "core":
        return _that_begin(groups()["core"], typed)
    if place == "overrides":
        return _overrides(given[0] if given else "", typed)
    return []


def _overrides(sweep: str, typed: str) -> list[str]:
    """`rule.delta=`, and behind the sign the values that are known of it."""
    from cppo_lab.sweep.words import override_words

    words = override_words(sweep)
    key, equals, value = typed.partition("=")
    if equals:
        return [f"{key}={one}" for one in _lists(words.get(key, []), value)]
    return _that_begin((f"{one}=" for one in words), typed)


def _lists(words: Iterable[str], typed: str) -> list[str]:
    """Words of a comma list: the last one is being typed."""
    done, comma, last = typed.rpartition(",")
    return [f"{done}{comma}{one}" for one in _that_begin(words, last) if one not in done.split(",")]


def _runs() -> list[str]:
    """Ids of the runs that have folders here."""
    try:
        names = os.listdir("runs")  # noqa: PTH208 - ten thousand names, of which none needs to be a Path
    except OSError:
        return []
    return sorted(name for name in names if len(name) == _LENGTH and not set(name) - set("0123456789abcdef"))


def _that_begin(words: Iterable[str], typed: str) -> list[str]:
    return [word for word in words if word.startswith(typed)]


def completion_arguments(command: CommandParser) -> None:
    command.set_defaults(command=completion)
    command.add_argument(
        "shell",
        choices=sorted(SCRIPTS),
        metavar="SHELL",
        help='bash: add `eval "$(cppo completion bash)"` to ~/.bashrc; zsh: add `eval "$(cppo completion zsh)"` to '
        "~/.zshrc, after `compinit`; fish: cppo completion fish > ~/.config/fish/completions/cppo.fish",
    )
