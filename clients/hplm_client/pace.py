"""How many rows of one `infer_many` may be under way, and when rejected ones are sent again.

As TCP does with packets: while answers come early, more rows are sent at once; a late answer or a rejection makes them
fewer. So a call finds out what the server does within the deadline, whatever its load.
"""

from __future__ import annotations

import time

from hplm_client.limits import jittered

_EARLY_PART, _LATE_PART = 0.5, 0.8
"""Parts of the deadline: below the first more rows may be under way, above the second fewer."""
_LONGEST_PAUSE_S = 1.0
"""Where the server says that a shorter one is enough, and then rejects all the same."""
_MOST_DOUBLINGS = 10
_PATIENCE_S = 10.0
_PATIENCE_DEADLINES = 10


class Pace:
    """Counts the rows under way. Not safe between threads; the workload calls it under its lock.

    Args:
        first_rows: Rows of the first request, the least that may always be sent.
        most_rows: Rows that may be under way at most.
        deadline_s: The shortest deadline of the call's requests; None for no deadline.
    """

    def __init__(self, first_rows: int, most_rows: int, deadline_s: float | None) -> None:
        self._most_rows = float(most_rows)
        self._deadline_s = deadline_s
        self._window = self._most_rows if deadline_s is None else float(min(first_rows, most_rows))
        self._under_way = 0
        self._resumes_at = 0.0
        self._num_pauses = 0
        """Since the last answer."""
        self._answered_at = time.monotonic()
        self._patience_s = max(_PATIENCE_S, _PATIENCE_DEADLINES * (deadline_s or 0.0))

    @property
    def resumes_at(self) -> float:
        """When rows may be sent again, by the monotonic clock."""
        return self._resumes_at

    def may_send(self, num_rows: int) -> bool:
        if self._under_way == 0:
            return time.monotonic() >= self._resumes_at
        return self._under_way + num_rows <= self._window and time.monotonic() >= self._resumes_at

    def note_sent(self, num_rows: int) -> None:
        self._under_way += num_rows

    def note_answered(self, num_rows: int, took_s: float) -> None:
        self._under_way -= num_rows
        self._answered_at = time.monotonic()
        self._num_pauses = 0
        if self._deadline_s is None or took_s < _EARLY_PART * self._deadline_s:
            self._window = min(self._most_rows, self._window + num_rows)
        elif took_s > _LATE_PART * self._deadline_s:
            self._window = max(1.0, 0.8 * self._window)

    def note_failed(self, num_rows: int) -> None:
        """An error that says nothing about the server's load."""
        self._under_way -= num_rows

    def note_rejected(self, num_rows: int, retry_after_s: float) -> bool:
        """Send fewer from now on, and none for a while; returns whether these rows may be sent again.

        The pause is what the server says, and twice as long each time that it was not enough for one answer. Once these
        have been waited for in vain for long, each other row is sent once.
        """
        self._window = max(1.0, min(self._window, self._under_way) / 2)
        self._under_way -= num_rows
        now = time.monotonic()
        if now >= self._resumes_at:
            self._num_pauses += 1
        pause_s = retry_after_s
        if now - self._answered_at < self._patience_s:
            doubled_s = retry_after_s * 2 ** min(self._num_pauses - 1, _MOST_DOUBLINGS)
            pause_s = max(retry_after_s, min(_LONGEST_PAUSE_S, doubled_s))
        self._resumes_at = max(self._resumes_at, now + jittered(pause_s))
        return self._resumes_at - self._answered_at < self._patience_s
