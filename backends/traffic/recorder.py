"""Recorder of one process: requests are noted in a bounded buffer, and a thread of its own writes them to disk.

Noting takes a microsecond, holds no lock and touches no file. What finds no room, in the buffer or on the disk, is left
out and counted; requests are served all the same.

Usage:
    recorder = TrafficRecorder(home.traffic, "hplm_lower_0_0", TrafficSettings(record=True))
    recorder.note(Asked(now_us(), entries, tokens), ACCEPTED)
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from backends.clock import now_us
from backends.errors import StorageFullError
from backends.registry.entries import HplmEntry
from backends.traffic.recording import MOST_RECORDS
from backends.traffic.records import OUTCOMES, RECORD, Records
from backends.traffic.segments import Segments
from backends.traffic.settings import TrafficSettings
from backends.traffic.tally import Tally
from backends.wire import AUTO, LEVELS

LOGGER = logging.getLogger(__name__)
MOST_NOTES = 16_384
"""Notes that wait to be written."""
_WRITE_EVERY_S = 0.5
_MARK_EVERY_US = 60_000_000
"""A process that is asked nothing writes that down so often: nothing came, though it was there."""
_RETRY_AFTER_US = 60_000_000
_OUTCOME_OF = {name: number for number, name in enumerate(OUTCOMES)}
_LEVEL_OF = {name: number for number, name in enumerate(LEVELS)}


class Asked(NamedTuple):
    """What a request asks for.

    Attributes:
        arrived_us: When it came, on the monotonic clock.
        entries: The hPLM of each row.
        tokens: The least that each row can have.
        in_us: Its deadline after its arrival; None where it has none.
        level: One of `LEVELS`.
        is_canary: Whether the server's own watchdog has sent it: it is no traffic, and no tenant is charged.
    """

    arrived_us: int
    entries: Sequence[HplmEntry]
    tokens: Sequence[int]
    in_us: int | None = None
    level: str = AUTO
    is_canary: bool = False


_Note = tuple[int, int | None, str, HplmEntry, int, int, str, bool]
"""Of a request when it arrived, its deadline and level; of one of its hPLMs the rows and tokens; the outcome; whether
it is the first hPLM. It holds nothing else of the request, so that a full buffer has a known size."""


class TrafficRecorder:
    """Notes requests and writes them; `close` writes the rest."""

    def __init__(
        self,
        folder: Path,
        process: str,
        settings: TrafficSettings,
        most_notes: int = MOST_NOTES,
        write_every_s: float = _WRITE_EVERY_S,
    ) -> None:
        self._folder = folder
        self._segments = Segments(folder, process, settings)
        self._most_notes = most_notes
        self._write_every_s = write_every_s
        self._notes: deque[_Note] = deque()
        self._overflow = Tally()
        """Records that found the buffer full."""
        self._num_unwritten = 0
        """Records that found no room on the disk."""
        self._num_told = 0
        """Lost records that a file tells of."""
        self.num_recorded = self.num_lost = 0
        self._written_us: int | None = None
        self._paused_until_us: int | None = None
        self._has_ended = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded_run, name="traffic", daemon=True)
        self._thread.start()

    def note(self, asked: Asked, outcome: str, tokens: Sequence[int] | None = None) -> None:
        """Note what became of a request, one of `OUTCOMES`; `tokens` of each row where they are known by now."""
        if asked.is_canary:
            return
        lengths = asked.tokens if tokens is None else tokens
        if len(self._notes) >= self._most_notes or self._has_ended:
            self._overflow.raise_by_one()
        elif len(lengths) == 1:
            self._notes.append(
                (asked.arrived_us, asked.in_us, asked.level, asked.entries[0], 1, lengths[0], outcome, True)
            )
        else:
            self._note_rows(asked, lengths, outcome)

    def _note_rows(self, asked: Asked, lengths: Sequence[int], outcome: str) -> None:
        """Note the rows of each hPLM together."""
        sums: dict[int, list[int]] = {}
        for entry, length in zip(asked.entries, lengths, strict=True):
            counts = sums.setdefault(entry.key, [0, 0])
            counts[0] += 1
            counts[1] += length
        by_key = {entry.key: entry for entry in asked.entries}
        of_request, is_first = (asked.arrived_us, asked.in_us, asked.level), True
        for key, (rows, total) in sums.items():
            self._notes.append((*of_request, by_key[key], rows, total, outcome, is_first))
            is_first = False

    @property
    def num_waiting(self) -> int:
        """Notes that wait to be written."""
        return len(self._notes)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    # --- the thread ---

    def _guarded_run(self) -> None:
        try:
            self._append([])
            while not self._stopping.wait(self._write_every_s):
                self._write()
            self._paused_until_us = None
            self._write(is_last=True)
        except Exception:  # a defect; requests are served all the same
            LOGGER.exception("traffic is not recorded any more")
            self._has_ended = True
            self._notes.clear()
        finally:
            self._segments.close()

    def _write(self, is_last: bool = False) -> None:
        now = now_us()
        if self._paused_until_us is not None and now < self._paused_until_us:
            return  # what comes meanwhile waits in the buffer
        is_marked = self._written_us is not None and now - self._written_us < _MARK_EVERY_US
        if not self._notes and (is_last or not is_marked):
            self._append([])
        while self._notes and self._append(self._taken()):
            pass

    def _taken(self) -> list[_Note]:
        return [self._notes.popleft() for _ in range(min(len(self._notes), MOST_RECORDS))]

    def _append(self, notes: list[_Note]) -> bool:
        """Write a block, or pause; returns whether it was written."""
        num_lost = self.num_lost = self._overflow.total() + self._num_unwritten
        records, entries = _records_of(notes)
        try:
            self._segments.append(records, entries, num_lost - self._num_told)
        except (OSError, StorageFullError) as error:
            self._num_unwritten += len(notes)
            if self._paused_until_us is None:
                LOGGER.warning("traffic is not recorded for now, %s: %s", self._folder, error)
            self._paused_until_us = now_us() + _RETRY_AFTER_US
            return False
        if self._paused_until_us is not None:
            LOGGER.warning("traffic is recorded again; %d records were lost", num_lost - self._num_told)
            self._paused_until_us = None
        self._num_told = num_lost
        self.num_recorded += len(notes)
        self._written_us = now_us()
        return True


def _records_of(notes: Sequence[_Note]) -> tuple[Records, Sequence[HplmEntry]]:
    """Make records of notes, and the hPLM of each; the numbers of hPLMs are those of a file, and still 0."""
    records = np.zeros(len(notes), RECORD)
    if not notes:
        return records, ()
    arrived_us, in_us, levels, entries, rows, tokens, outcomes, are_first = zip(*notes, strict=True)
    records["arrived_us"], records["rows"], records["tokens"], records["is_first"] = arrived_us, rows, tokens, are_first
    records["deadline_us"] = [us or 0 for us in in_us]
    records["outcome"] = [_OUTCOME_OF[outcome] for outcome in outcomes]
    records["level"] = [_LEVEL_OF[level] for level in levels]
    return records, entries
