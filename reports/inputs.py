"""What a report was made of, as one fingerprint: the request, the runs, our code and the libraries."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from cppo_lab.redaction import redacted
from cppo_lab.reports.fingerprint import fingerprint, report_code


def report_inputs(request: Any, versions: Sequence[str]) -> str:
    """Changes with anything that could change a file of the report. `request` is that of a report, of whatever kind;
    `versions` those of its runs.

    Where the report goes does not matter, nor does the password of the store.
    """
    asked = [(part.name, getattr(request, part.name)) for part in fields(request) if part.name != "out"]
    plain = [(name, redacted(value) if name == "uri" else value) for name, value in asked]
    return fingerprint((report_code(), type(request).__name__, plain, tuple(versions)))
