"""`overleaf.zip`: the tables and figures of a report as a LaTeX project, to be uploaded as it is."""

import io
import zipfile
from collections.abc import Mapping, Sequence

from cppo_lab.reports.escapes import escape_latex
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.markup import latex_wrapper

NAME = "overleaf.zip"
_TIME = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the earliest date of the zip format, so that the same files give the same bytes


def overleaf(texts: Mapping[str, str], drawn: Mapping[str, bytes], pictures: Sequence[Picture]) -> bytes:
    """Every LaTeX table of `texts` and every PDF of `drawn`, and `main.tex`, which shows them all."""
    figures = [_figure(one) for one in pictures if f"{one.name}.pdf" in drawn]
    files = {"main.tex": latex_wrapper(texts, figures).encode()}
    files |= {
        name: text.encode() for name, text in texts.items() if name.endswith(".tex") and name != "tables.tex"
    }
    files |= {name: data for name, data in drawn.items() if name.endswith(".pdf")}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return out.getvalue()


def _figure(picture: Picture) -> str:
    caption = escape_latex(f"{picture.title}. {picture.caption}".strip())
    return (
        "\\begin{figure}[htbp]\\centering\n"
        f"  \\includegraphics[width=\\linewidth]{{{picture.name}.pdf}}\n"
        f"  \\caption{{{caption}}}\n\\end{{figure}}\\clearpage"
    )
