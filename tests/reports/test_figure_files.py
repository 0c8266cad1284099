"""What a figure's file says of itself, read back by other means than those that wrote it."""

import io
import re
import struct
import zlib
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from cppo_lab.reports.figures.drawing import Picture, render

RUNS = ("mini-cppo-0a1b", "mini-(dppo)-2", "ü中\\")
COMMAND = "cppo report './my sweep.yaml' 'rule.w_min=0.6,0.8' --palette colorblind"
TITLE = "Curves (50 % & <more>) δ (a store)"


@dataclass(frozen=True)
class Info:
    source: str
    run_ids: tuple[str, ...]


def draw(info: Info, fig: Figure) -> None:
    fig.subplots().plot([0, 1], [1, 0])


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    files = render(
        Picture("f", "", "Curves (50 % & <more>) δ", "", Info("a store", RUNS), draw), COMMAND
    ).files
    return {name.partition(".")[2]: data for name, data in files.items()}


def png_texts(data: bytes) -> dict[str, str]:
    """The tEXt and iTXt chunks of a PNG, by its specification."""
    found, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        if kind == b"tEXt":
            key, _, text = body.partition(b"\0")
            found[key.decode("latin-1")] = text.decode("latin-1")
        elif kind == b"iTXt":
            key, _, rest = body.partition(b"\0")
            packed, rest = rest[0], rest[2:]
            text = rest.split(b"\0", 2)[2]
            found[key.decode("latin-1")] = (zlib.decompress(text) if packed else text).decode()
        place += length + 12
    return found


def pdf_info(data: bytes) -> dict[str, str]:
    """The strings of a PDF's information dictionary."""
    found = {}
    for name in ("Title", "Subject", "Keywords"):
        start = data.index(f"/{name} (".encode()) + len(name) + 3
        out, depth, place = bytearray(), 0, start
        while depth or data[place : place + 1] != b")":
            sign = data[place : place + 1]
            if sign == b"\\":
                following = data[place + 1 : place + 2]
                octal = re.match(rb"[0-7]{1,3}", data[place + 1 : place + 4])
                if octal:
                    out.append(int(octal[0], 8))
                    place += 1 + len(octal[0])
                    continue
                out += {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}.get(
                    following, following
                )
                place += 2
                continue
            depth += {b"(": 1, b")": -1}.get(sign, 0)
            out += sign
            place += 1
        text = bytes(out)
        found[name] = text[2:].decode("utf-16-be") if text.startswith(b"\xfe\xff") else text.decode("latin-1")
    return found


def test_png(files: dict[str, bytes]) -> None:
    texts = png_texts(files["png"])
    assert texts["Title"] == TITLE
    assert texts["Description"] == f"made by: {COMMAND}"
    assert texts["Comment"] == "runs: " + " ".join(RUNS)


def test_svg(files: dict[str, bytes]) -> None:
    root = ElementTree.parse(io.BytesIO(files["svg"])).getroot()
    (meta,) = root.iter("{http://www.w3.org/2000/svg}metadata")
    dublin = "{http://purl.org/dc/elements/1.1/}"
    assert next(meta.iter(dublin + "title")).text == TITLE  # the next one is matplotlib's
    assert [entry.text for entry in meta.iter(dublin + "description")] == [f"made by: {COMMAND}"]
    (subject,) = meta.iter(dublin + "subject")
    assert "".join(subject.itertext()).strip() == "runs: " + " ".join(RUNS)


def test_pdf(files: dict[str, bytes]) -> None:
    assert pdf_info(files["pdf"]) == {
        "Title": TITLE,
        "Subject": f"made by: {COMMAND}",
        "Keywords": "runs: " + " ".join(RUNS),
    }


def test_svg_and_pdf_are_vectors(files: dict[str, bytes]) -> None:
    assert b"<image" not in files["svg"]
    assert b"/Subtype /Image" not in files["pdf"]
