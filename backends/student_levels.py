"""Names of the levels that students answer: `students-2` is the first two; `students` as many as the load allows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from backends.stack_key import STUDENTS

MOST_STUDENTS = 8
"""Of one root."""


def student_level(count: int) -> str:
    return f"{STUDENTS}-{count}"


COUNTS: Mapping[str, int] = MappingProxyType({student_level(count): count for count in range(1, MOST_STUDENTS + 1)})
"""How many students answer, by the name of the level."""
STUDENT_LEVELS = (STUDENTS, *COUNTS)
