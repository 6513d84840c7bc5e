"""A lock for moments: while it is held, nobody else replaces a root's students, or publishes adapters for them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path

from backends.file_lock import locked_in_turn
from backends.root.student_set import students_folder
from builder.locks import lock_path

LOGGER = logging.getLogger(__name__)


def students_unchanged(root: Path) -> AbstractContextManager[None]:
    """Keep the students in a root's folder as they are; wait where another process has the lock."""
    waiting = "waiting for another build that reads or replaces the students of root %s"
    return locked_in_turn(lock_path(students_folder(root)), lambda: LOGGER.info(waiting, root.name))
