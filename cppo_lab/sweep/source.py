"""Reads sweep files as plain values: of limited size, without duplicate keys, and with only text, numbers, lists and
mappings.

For `cppo list` and the shell's completion it also reads names and meanings from these files and conf/, directly and not
validated, so that neither pydantic nor Hydra is imported. Unreadable files say nothing.
"""

import re
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from cppo_lab import PARTS_FOLDER
from cppo_lab.errors import UserError, one_line
from cppo_lab.sweep.groups import CONF

MAX_BYTES = 1_000_000
MAX_VALUES = 100_000  # nested aliases could expand to any number
LARGEST_BITS = 64
MAX_SAID = 200  # characters of a value in a message
MAX_DEPTH = 32  # an alias to its parent would be infinitely deep
TOO_DEEP = f"more than {MAX_DEPTH} levels deep: remove the alias to its own parent, or the extra brackets"
PLAIN = "only text, numbers, true, false, lists and mappings are values"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"

# The path to a value: (path of its parent, key). It is joined only for messages, since aliases make many long paths.
Way: TypeAlias = "tuple[Way, str] | None"


class _Loader(yaml.SafeLoader):
    """Safe loader that reads true, false, null and numbers as YAML 1.2, and numbers as strictly as the command line.

    PyYAML reads YAML 1.1, where `yes` is true and `1e-6` is text. A scalar that does not match its tag (month 13,
    `!!bool x`), and a number that only some programs read as such, or with another value, is an error with its place.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            kind = node.tag.rpartition(":")[2]
            problem = f"{_short(node.value)} is no {kind}: quote it if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        merged = 0
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge" and isinstance(value, yaml.SequenceNode):
                for part in value.value:
                    if isinstance(part, yaml.MappingNode):
                        self.flatten_mapping(part)
                        merged += len(part.value)
                    if merged > MAX_VALUES:
                        problem = f"<< merges more than {MAX_VALUES:,} keys: write out the keys you need"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        super().flatten_mapping(node)


def _refuse_tag(loader: _Loader, node: yaml.Node) -> None:
    problem = f"the tag {node.tag!r} is not read from a sweep file: remove it"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _construct(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """The value of a scalar of a kind in _FORMS, whose tag may also be written out, as `!!kind`."""
    kind = node.tag.rpartition(":")[2]
    if not (_FORMS[kind].fullmatch(node.value) or (kind == "float" and _FORMS["int"].fullmatch(node.value))):
        raise ValueError
    return _VALUES[kind](node.value)


def _refuse_ambiguous(loader: _Loader, node: yaml.ScalarNode) -> None:
    problem = (
        f"{_short(node.value)} is a number that programs read differently, or as text: write plain decimal digits, as "
        "in 1000, or quote it if it is text"
    )
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_DIGITS = r"(?:0|[1-9][0-9]*)"
_FORMS = {
    "bool": re.compile("true|True|TRUE|false|False|FALSE"),
    "null": re.compile("~|null|Null|NULL|"),
    "int": re.compile(f"[-+]?{_DIGITS}"),
    "float": re.compile(
        rf"[-+]?(?:(?:{_DIGITS}\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|{_DIGITS}[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))"
        r"|\.(?:nan|NaN|NAN)"
    ),
}
_VALUES: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: text.lower() == "true",
    "null": lambda text: None,
    "int": int,
    "float": lambda text: float(text.replace(".", "", 1) if text[-1] in "fFnN" else text),  # .inf, .nan
}
# 010, 0x10, 0b1, 1_000, 1:30: numbers of YAML 1.1 (base 8, 16, 2, 60), of YAML 1.2 or of Hydra that _FORMS leave out.
_AMBIGUOUS = re.compile(
    r"[-+]?(?:0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|0[bB][01_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9_]+)?)"
)
_ANY_START = (None,)  # PyYAML looks for the forms by the first character of a scalar
_Loader.yaml_implicit_resolvers = {}  # without those of YAML 1.1
_Loader.add_constructor(None, _refuse_tag)
for _kind, _form in _FORMS.items():
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct)
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_form.pattern})$"), _ANY_START
    )
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("<<$"), _ANY_START)
_Loader.add_implicit_resolver(
    _TIMESTAMP, dict(yaml.SafeLoader.yaml_implicit_resolvers["2"])[_TIMESTAMP], _ANY_START
)
_Loader.add_implicit_resolver("ambiguous", re.compile(f"(?:{_AMBIGUOUS.pattern})$"), _ANY_START)
_Loader.add_constructor("ambiguous", _refuse_ambiguous)


def read_text(path: Path, source: str) -> str:
    """The text of a sweep file; `source` is its name in messages.

    Raises UserError for anything but a readable file of reasonable size, FileNotFoundError if there is none.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"sweep file {source} is a folder: name a file in it")
        if not stat.S_ISREG(mode):
            raise UserError(f"sweep file {source} is no regular file: copy its text into one")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(f"sweep file {source} cannot be read: {reason}: name a readable file") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"sweep file {source} has more than {MAX_BYTES:,} bytes: no sweep needs as many")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UserError(f"sweep file {source} is not UTF-8 text: save it as UTF-8") from None


def plain(text: str) -> Any:
    """The value of a YAML text, whatever it is. Raises YAMLError, ValueError or RecursionError."""
    return _Loader(text).get_single_data()


def mapping(text: str, source: str, reference: re.Pattern[str] | None = None) -> dict[str, Any]:
    """The top-level mapping of a YAML text. References are refused, except those that match `reference`.

    Raises UserError with the location or key of the error.
    """
    try:
        loader, values = _Loader(text), None
        if (node := loader.get_single_node()) is not None:
            _refuse_duplicates(node, source)
            values = loader.construct_document(node)
    except RecursionError:
        raise UserError(f"sweep {source}: {TOO_DEEP}") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        problem = problem.replace("are not allowed here", "are not allowed here: quote a text with `: `")
        raise UserError(f"sweep {source}{place}: not valid YAML: {problem}") from None
    if not isinstance(values, dict):
        raise UserError(
            f"sweep {source}: a sweep file is a mapping with title, question, models, variants, axes"
        )
    _refuse_unusual(values, source, reference)
    return values


def _refuse_duplicates(root: yaml.Node, source: str) -> None:
    """Refuse duplicate keys, of which PyYAML would silently keep the last."""
    seen: set[int] = set()
    todo: list[tuple[Way, yaml.Node]] = [(None, root)]
    while todo:
        way, node = todo.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo += [((way, str(i)), item) for i, item in enumerate(node.value)]
            continue
        names = set[str]()
        for key, value in node.value:
            name, mark = "?", key.start_mark
            if isinstance(key, yaml.ScalarNode):
                name = key.value
                if name in names:
                    raise UserError(
                        f"sweep {source} line {mark.line + 1}, column {mark.column + 1}: key {_dotted((way, name))!r} "
                        "appears twice: remove one"
                    )
                names.add(name)
            todo.append(((way, name), value))


def _refuse_unusual(values: Any, source: str, reference: re.Pattern[str] | None) -> None:
    """Refuse dates, bytes, sets, non-text keys, and an excessive number or depth of values."""
    count = 0
    todo: list[tuple[Way, int, Any]] = [(None, 0, values)]
    while todo:
        way, depth, value = todo.pop()
        count += 1
        fault = ""
        if count > MAX_VALUES:
            raise UserError(
                f"sweep {source}: {PLAIN}, {MAX_VALUES:,} at most: the aliases here expand to more; write the values "
                "out"
            )
        if depth > MAX_DEPTH:
            fault = f": {TOO_DEEP}"
        elif isinstance(value, dict):
            for key in value:
                if (
                    of_key := _odd(key)
                    if isinstance(key, str)
                    else f": the key {key!r} is not text: quote it"
                ):
                    raise UserError(f"sweep {source}: {_dotted((way, str(key)))}{of_key}")
            todo += [((way, key), depth + 1, item) for key, item in value.items()]
        elif isinstance(value, list):
            todo += [((way, str(i)), depth + 1, item) for i, item in enumerate(value)]
        elif isinstance(value, str) and "${" in value and not (reference and reference.fullmatch(value)):
            fault = f"={_short(value)}: a sweep file holds plain values; ${{...}} belongs into conf/"
        elif isinstance(value, str):
            fault = _odd(value)
        elif isinstance(value, int) and value.bit_length() >= LARGEST_BITS:
            fault = f": a whole number of {value.bit_length():,} bits: no key takes one so large"
        elif not (value is None or isinstance(value, int | float)):
            fault = f"={_short(value)} is a {type(value).__name__}: {PLAIN}: quote it"
        if fault:
            raise UserError(f"sweep {source}: {_dotted(way)}{fault}")


# Bidirectional control characters, by Unicode class, and direction marks that are classified as letters.
_TURNS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_MARKS = frozenset("\u061c\u200e\u200f")


def _odd(text: str) -> str:
    """What is wrong with a text, empty if nothing is: a character that databases reject, terminals interpret, or that
    changes how a page displays text.
    """
    for char in text:
        controls = unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t"
        if controls or unicodedata.bidirectional(char) in _TURNS or char in _MARKS:
            return f": {_short(text)} has the character {char!a}: remove it"
    return ""


def _dotted(way: Way) -> str:
    """The dotted key of a path."""
    names: list[str] = []
    while way is not None:
        way, name = way
        names.insert(0, name)
    return ".".join(names)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SAID else f"{text[:MAX_SAID]}..."


SHIPPED = PARTS_FOLDER / "sweeps"
_DECLARES = ("models", "sweeps")  # either key marks a sweep file
_KEY = re.compile(r"(?P<indent> *)(?P<name>\w+):(?:.*?\s# *(?P<comment>.*))?")


def sweep_files() -> dict[str, Path]:
    """The sweeps, studies and searches that a command can name here -> their files: those that come with the product,
    and by their paths those in the working folder and in its folder `sweeps`.
    """
    here = [*sorted(Path().glob("*.yaml")), *sorted(Path("sweeps").glob("*.yaml"))]
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))} | {
        str(path): path for path in here if path.parent.resolve() != SHIPPED
    }


def sweeps() -> Iterator[dict[str, str]]:
    """Name, title and question of each of `sweep_files`; other YAML files are left out."""
    for name, path in sweep_files().items():
        content = _yaml(path)
        if "title" in content and any(key in content for key in _DECLARES):
            yield {
                "name": name,
                "title": one_line(str(content["title"])),
                "question": one_line(str(content.get("question") or "")),
            }


def variants(sweep: str) -> list[str]:
    """The variants of a sweep, or of the sweeps of a study."""
    files = sweep_files()
    content = _yaml(files.get(sweep, Path(sweep)))
    parts = content.get("sweeps")
    names = map(str, parts if isinstance(parts, list) else ())
    contents = [content, *(_yaml(files.get(name, Path(name))) for name in names)]
    listed = (content.get("variants") for content in contents)
    return list(dict.fromkeys(str(name) for keys in listed if isinstance(keys, dict) for name in keys))


def option_words(group: str) -> dict[str, str]:
    """The options of a group in conf/, each with the first sentence of its file's heading."""
    return {path.stem: _heading(path) for path in sorted((CONF / group).glob("*.yaml"))}


def _heading(path: Path) -> str:
    """The first sentence of a file's first comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), (line for line in lines if "@package" not in line))
    return re.split(r"(?<=.{8}\.)\s+(?=[A-Z])", " ".join(line.lstrip("# ") for line in comment))[0]


def key_words() -> dict[str, str]:
    """Dotted key of the configuration -> the comment behind it in conf/. The files of the default configuration come
    first: elsewhere comments may be about the value alone.
    """
    base = CONF / "config.yaml"
    defaults = [
        CONF / group / f"{option}.yaml"
        for entry in _yaml(base)["defaults"]
        if isinstance(entry, Mapping)
        for group, option in entry.items()
    ]
    words: dict[str, str] = {}
    for path in [base, *defaults, *sorted(CONF.glob("*/*.yaml"))]:
        text = path.read_text(encoding="utf-8")
        # A file for `_global_` names its sections itself; for other files the section is the group.
        whole = path == base or "@package _global_" in text
        above: list[tuple[int, str]] = [] if whole else [(-1, path.parent.name)]
        for match in filter(None, map(_KEY.match, text.splitlines())):
            depth = len(match["indent"])
            above = [*(entry for entry in above if entry[0] < depth), (depth, match["name"])]
            if match["comment"]:
                words.setdefault(".".join(name for _, name in above), match["comment"])
    return words


def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty if it cannot be read or is not a mapping."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:  # a pipe would be waited for
            return {}
        content = plain(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
