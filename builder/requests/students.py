"""The requests for a root's students."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from builder.requests.base import Device, Request
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
