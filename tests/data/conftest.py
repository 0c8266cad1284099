"""Graders on a busy machine."""

import re
import subprocess
from typing import Any

import pytest

from cppo_lab.data import grading
from tests.waiting import CEILING_SECONDS

EASY = re.compile(r"(Answer: )?\\frac\{\d+\}\{\d+\}")


@pytest.fixture
def patient_grading(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit on what ends by itself: on a busy machine a right answer could come late, and a dead child too."""
    ask, wait = grading._Child.ask, subprocess.Popen.wait

    def patient_ask(child: Any, question: dict[str, Any], deadline: float) -> dict[str, Any] | None:
        easy = EASY.fullmatch(question["answer"]) is not None
        return ask(child, question, deadline + CEILING_SECONDS * easy)

    monkeypatch.setattr(grading._Child, "ask", patient_ask)
    monkeypatch.setattr(subprocess.Popen, "wait", lambda process, timeout=None: wait(process))
