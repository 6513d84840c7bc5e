"""What becomes of rows that neither wait nor run when the serve loop fails."""

from __future__ import annotations

import queue
from typing import Any
from unittest.mock import Mock

from backends.errors import UnavailableError
from backends.home import Home
from served_engine import running


def test_rows_between_two_places_are_told_when_the_loop_fails(built_home: Home) -> None:
    """One was to run again, isolated, and the answer of another was being made."""
    told = queue.Queue[tuple[str, Any]]()

    def row(name: str) -> Any:
        return Mock(fallback=None, end=lambda answer: told.put((name, answer)))

    def fail() -> None:
        raise ValueError("a defect")

    with running(built_home) as service:
        loop = service._loop
        spoilt = Mock(open_jobs=(), spoilt_jobs=[row("spoilt")])
        loop._in_flight.append(spoilt)
        loop._outcomes.being_answered = (row("answered"),)
        loop._guarded(fail)
        found = dict(told.get_nowait() for _ in range(2))
        assert found.keys() == {"spoilt", "answered"}
        assert all(isinstance(answer, UnavailableError) for answer in found.values())
