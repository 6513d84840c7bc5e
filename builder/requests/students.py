"""The requests for students: a root's, and an hPLM's adapters for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from builder.requests.base import Device, HplmId, Request
from builder.settings.device import AUTO
from builder.settings.students import StudentSettings


class MakeStudents(Request):
    """The students of one root.

    `corpus` names files of texts to learn from, by default those that the root was made from. Students that the root
    has already are replaced only where `replace` says so: hPLMs' adapters for them are of no use then.
    """

    root: str
    corpus: list[Path] = Field(default_factory=list)
    settings: StudentSettings = Field(default_factory=StudentSettings)
    replace: bool = False
    device: Device = AUTO


class AddStudents(Request):
    """The adapters and heads of one hPLM for its root's students.

    The hPLM itself teaches: by its answers to the examples and, with `unlabelled`, to other texts. `dev` chooses the
    best epoch and the best number of students.
    """

    id: HplmId
    train: Path
    dev: Path
    unlabelled: Path | None = None
    tune: dict[str, Any] = Field(default_factory=dict)
    device: Device = AUTO
