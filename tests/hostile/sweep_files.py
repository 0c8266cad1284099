"""Sweep files that are no file, no text, no YAML, or YAML that means more than it says."""

import os
from pathlib import Path

from tests.hostile.case import Case, Content

NAME = "mine.yaml"
HEAD = "title: T\nquestion: Q?\n"
MODELS = f"{HEAD}models: [mini_base]\n"
SWEEP = f"{MODELS}variants:\n  cppo: {{rule: cppo}}\n"
NO_TITLE = SWEEP.removeprefix("title: T\n")
BILLION = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{one}: &{one} [{','.join([f'*{before}'] * 9)}]\n"
    for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "x:\n  a: &a {k0: 1, k1: 1, k2: 1, k3: 1, k4: 1, k5: 1, k6: 1, k7: 1, k8: 1}\n" + "".join(
    f"  {one}: &{one} {{<<: [{','.join([f'*{before}'] * 9)}]}}\n"
    for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)


def file(content: Content, says: str) -> Case:
    return Case(["plan", f"./{NAME}"], f"{says}", {NAME: content})


def sweep(added: str, says: str) -> Case:
    return file(SWEEP + added, f"sweep ./{NAME}{says}")


def title(value: str, says: str) -> Case:
    return file(f"title: {value}\n{NO_TITLE}", f"sweep ./{NAME}{says}")


def _loop(folder: Path) -> None:
    (folder / NAME).symlink_to(NAME)


def _dangling(folder: Path) -> None:
    (folder / NAME).symlink_to("gone.yaml")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / NAME)


def _endless(folder: Path) -> None:
    (folder / NAME).symlink_to("/dev/zero")


def _folder(folder: Path) -> None:
    (folder / NAME).mkdir()


NO_MAPPING = f"sweep ./{NAME}: a sweep file is a mapping with title, question, models, variants, axes"
DEEP = "more than 32 levels deep: remove the alias to its own parent, or the extra brackets"
AMBIGUOUS = (
    "is a number that programs read differently, or as text: write plain decimal digits, as in 1000, or quote it if it "
    "is text"
)
PLAIN = "only text, numbers, true, false, lists and mappings are values"

NO_SWEEPS = [
    file("", NO_MAPPING),
    file("---\n", NO_MAPPING),
    file("null", NO_MAPPING),
    file("[1,2]", NO_MAPPING),
    file("just text", NO_MAPPING),
    file("42", NO_MAPPING),
    file("# only a comment\n", NO_MAPPING),
    Case(["plan", NAME], f"sweep file {NAME} cannot be read: …: name a readable file", make=_loop),
    Case(["plan", NAME], f"sweep file {NAME} does not exist (shipped sweeps: …main", make=_dangling),
    Case(["plan", NAME], f"sweep file {NAME} is no regular file: copy its text into one", make=_pipe),
    Case(["plan", NAME], f"sweep file {NAME} is no regular file: copy its text into one", make=_endless),
    Case(["plan", NAME], f"sweep file {NAME} is a folder: name a file in it", make=_folder),
    Case(["plan", "a.txt/x.yaml"], "sweep file a.txt/x.yaml cannot be read: Not a directory", {"a.txt": ""}),
]

ENCODINGS = [
    file(SWEEP.encode("utf-16"), f"sweep file ./{NAME} is not UTF-8 text: save it as UTF-8"),
    file(SWEEP.encode("utf-16-le"), "unacceptable character #x0000"),
    file(SWEEP.encode("utf-32"), f"sweep file ./{NAME} is not UTF-8 text: save it as UTF-8"),
    file("title: Größe\n".encode("latin-1"), f"sweep file ./{NAME} is not UTF-8 text: save it as UTF-8"),
    file(b"\xef\xbb\xbf" + SWEEP.encode() + b"modells: 1\n", "unknown key 'modells': did you mean 'models'?"),
    file(b"\x7fELF" + bytes(range(256)), f"sweep file ./{NAME} is not UTF-8 text: save it as UTF-8"),
    file(b"PK\x03\x04" + bytes(50), f"sweep ./{NAME}: not valid YAML: unacceptable character #x0003"),
    file(SWEEP.encode() + b"\x00", "not valid YAML: unacceptable character #x0000"),
    file(SWEEP + "note: \x07\n", "not valid YAML: unacceptable character #x0007"),
    file("#" + "x" * 1_000_000, "has more than 1,000,000 bytes: no sweep needs as many"),
    title('"\\e[2J"', ": title: '\\x1b[2J' has the character '\\x1b': remove it"),
    title('"\\0"', ": title: '\\x00' has the character '\\x00': remove it"),
    title('"\\ud800"', ": title: '\\ud800' has the character '\\ud800': remove it"),
    sweep('"\\e[2J": 1\n', ": \\x1b[2J: '\\x1b[2J' has the character '\\x1b': remove it"),
]

YAML = [
    title(
        "!!python/object/apply:os.system ['touch x']",
        " line 1, column 8: …os.system' is not read …: remove it",
    ),
    title(
        "!!python/object:os.path {}", " line 1, column 8: …python/object:os.path' is not read …: remove it"
    ),
    title("!!python/name:os.system", " line 1, column 8: …python/name:os.system' is not read …: remove it"),
    title("!!python/module:os", " line 1, column 8: …python/module:os' is not read …: remove it"),
    title("!!python/tuple [1]", " line 1, column 8: …python/tuple' is not read …: remove it"),
    file("!!python/object/new:subprocess.Popen [[touch, x]]\n", " line 1, column 1: …Popen' is not read"),
    title(
        "!custom x",
        " line 1, column 8: not valid YAML: the tag '!custom' is not read from a sweep file: remove it",
    ),
    title("!!binary aGVsbG8=", f": title=b'hello' is a bytes: {PLAIN}: quote it"),
    title("!!set {a}", f": title={{'a'}} is a set: {PLAIN}: quote it"),
    title("2026-01-01", f": title=datetime.date(2026, 1, 1) is a date: {PLAIN}: quote it"),
    title("2026-13-45", " line 1, column 8: not valid YAML: '2026-13-45' is no timestamp: quote it"),
    title("!!timestamp x", " line 1, column 8: not valid YAML: 'x' is no timestamp: quote it"),
    title("!!bool x", " line 1, column 8: not valid YAML: 'x' is no bool: quote it"),
    title("!!int x", " line 1, column 8: not valid YAML: 'x' is no int: quote it"),
    title("!!float x", " line 1, column 8: not valid YAML: 'x' is no float: quote it"),
    title("9" * 5000, " line 1, column 8: not valid YAML: '999… is no int: quote it"),
    title("9" * 4000, ": title: a whole number of 13,288 bits: no key takes one so large"),
    title(
        "0x" + "f" * 5000,
        " line 1, column 8: not valid YAML: '0xfff…... is a number that programs read differently",
    ),
    sweep(
        f"axes: {{seed: [{'1:' * 3000}1]}}\n", f" line 6, column 15: not valid YAML: '1:1:1…... {AMBIGUOUS}"
    ),
    sweep("axes: {seed: [010]}\n", f" line 6, column 15: not valid YAML: '010' {AMBIGUOUS}"),
    sweep("axes: {seed: [!!int 010]}\n", " line 6, column 15: not valid YAML: '010' is no int: quote it"),
    sweep("resources: [{hours: 1:30}]\n", f" line 6, column 21: not valid YAML: '1:30' {AMBIGUOUS}"),
    sweep("axes: {seed: [on]}\n", ": axes.seed='on': must be a whole number in"),
    sweep(BILLION, f": {PLAIN}, 100,000 at most: the aliases here expand to more; write the values out"),
    sweep(MERGES, " line …, column 10: not valid YAML: << merges more than 100,000 keys: write out"),
    sweep("axes: &a {seed: *a}\n", f": axes.seed.seed.…: {DEEP}"),
    file("&r\ntitle: T\nquestion: *r\n", f": question.question.…: {DEEP}"),
    file("title: T\nquestion: &l [*l]\n", f": question.0.0.…: {DEEP}"),
    file("[" * 2000, f"sweep ./{NAME}: {DEEP}"),
    file("{a: " * 1000, f"sweep ./{NAME}: {DEEP}"),
    sweep("axes: {seed: *nowhere}\n", " line 6, column 14: not valid YAML: found undefined alias 'nowhere'"),
    file(
        f"<<: 5\n{SWEEP}",
        " line 1, column 5: not valid YAML: expected a mapping or list of mappings for merging",
    ),
    file(f"? [a, b]\n: 1\n{SWEEP}", " line 1, column 3: not valid YAML: found unhashable key"),
    file(f"1: x\n{SWEEP}", ": 1: the key 1 is not text: quote it"),
    file(f"null: x\n{SWEEP}", ": None: the key None is not text: quote it"),
    file(f"true: x\n{SWEEP}", ": True: the key True is not text: quote it"),
    file(f"yes: x\n{SWEEP}", "unknown key 'yes'"),
    file("title: [unclosed\n", " line 2, column 1: not valid YAML: expected ',' or ']'"),
    file("title: 'unclosed\n", " line 2, column 1: not valid YAML: found unexpected end of stream"),
    file("title: T\n\tquestion: Q\n", " line 2, column 1: not valid YAML: found character '\\t'"),
    file(f"%YAML 9.9\n---\n{SWEEP}", " line 1, column 1: not valid YAML: found incompatible YAML document"),
    file(f"{SWEEP}---\n{SWEEP}", " line 6, column 1: not valid YAML: but found another document"),
    file("a: b: c\n", " line 1, column 5: not valid YAML: mapping values are not allowed here"),
    title("@x", " line 1, column 8: not valid YAML: found character '@'"),
    title("`touch x`", " line 1, column 8: not valid YAML: found character '`'"),
    sweep(
        "axes: {seed: [0]}\naxes: {seed: [1]}\n",
        " line 7, column 1: key 'axes' appears twice: remove one",
    ),
    file(
        f"{MODELS}variants: {{a: {{rule: cppo, rule: dppo}}}}\n",
        "line 4, column 28: key 'variants.a.rule' appears twice: remove one",
    ),
]

CASES = [*NO_SWEEPS, *ENCODINGS, *YAML]
