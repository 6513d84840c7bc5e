"""Heartbeats: each loop of a model's process writes when it last went round, for the watchdog of `hplm serve`.

A few numbers in a file that the process maps into memory, so that a beat costs less than a microsecond. Loops beat also
while they have nothing to do, and between the layers of a batch: a loop that is silent has died or hangs.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backends.clock import now_us
from backends.server_folder import FOLDER_VARIABLE, made_anew

BEAT_EVERY_S = 0.5
"""A loop that has nothing to do beats this often."""
MAX_LOOPS = 3
_PREFIX = "hplm-heartbeat-"
_NAME_BYTES = 16
_HEAD = struct.Struct("=3q")
"""The process, its open requests, its number of loops; then the beats, the requests that have ended, and the names."""
_FIELDS = struct.Struct(f"=3q{MAX_LOOPS}qq" + f"{_NAME_BYTES}s" * MAX_LOOPS + f"{_NAME_BYTES}x")
"""As large as in earlier releases, with a fourth loop: after an upgrade, a server may be newer than its watchdog."""
_ENDED = 3 + MAX_LOOPS

Beat = Callable[[], None]
_OF_THREAD = threading.local()


def no_beat() -> None:
    """The beat of a loop that nobody watches."""


def adopt_beat(beat: Beat) -> None:
    """Make it the beat of the calling thread, whose loop it is."""
    _OF_THREAD.beat = beat


def beat_of_thread() -> None:
    """Beat for the loop of the calling thread; long work calls it now and then. Other threads have no beat."""
    getattr(_OF_THREAD, "beat", no_beat)()


class Heartbeat:
    """The heartbeat of one process. Without the folder of a server it is written nowhere.

    Args:
        process: Name of the model instance.
        loops: Names of the process's loops; each is silent until its first beat, and counts from now on.
    """

    def __init__(self, process: str, loops: Sequence[str]) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._path = Path(folder) / f"{_PREFIX}{process}" if folder else None
        self._memory = mmap.mmap(-1, _FIELDS.size) if self._path is None else made_anew(self._path, _FIELDS.size)
        beats = [now_us()] * len(loops) + [0] * (MAX_LOOPS - len(loops))
        names = [name.encode() for name in loops] + [b""] * (MAX_LOOPS - len(loops))
        self._memory[:] = _FIELDS.pack(os.getpid(), 0, len(loops), *beats, 0, *names)
        self._numbers = memoryview(self._memory)[: _HEAD.size + 8 * (MAX_LOOPS + 1)].cast("q")
        self._places = {name: 3 + place for place, name in enumerate(loops)}
        self._lock = threading.Lock()

    def beat_of(self, loop: str) -> Beat:
        """Return what that loop calls each time it goes round."""
        place, numbers = self._places[loop], self._numbers

        def beat() -> None:
            numbers[place] = now_us()

        return beat

    def begin_requests(self, count: int = 1) -> None:
        """The process has accepted requests."""
        with self._lock:
            self._numbers[1] += count

    def end_requests(self, count: int = 1) -> None:
        """The process has answered requests."""
        with self._lock:
            self._numbers[1] -= count
            self._numbers[_ENDED] += count

    def close(self) -> None:
        """Leave the file, so that a process that has ended by itself is silent, and not forgotten."""
        with suppress(BufferError):  # a loop that beats to the last holds the memory
            self._numbers.release()
            self._memory.close()


@dataclass(frozen=True)
class Pulse:
    """What a process has last written.

    Attributes:
        process: Name of the model instance.
        num_open: Requests that it has accepted and not answered.
        num_ended: Requests that it has answered so far.
        beats_us: When each loop last beat.
    """

    process: str
    pid: int
    num_open: int
    num_ended: int
    beats_us: Mapping[str, int]

    def silent_s(self, now: int) -> tuple[str, float]:
        """Return the loop that has been silent for the longest time, and the time."""
        loop = min(self.beats_us, key=lambda name: self.beats_us[name])
        return loop, (now - self.beats_us[loop]) / 1e6


def read_pulses(folder: Path) -> Iterator[Pulse]:
    """Read the heartbeats of a server's processes, by name."""
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        try:
            content = path.read_bytes()
        except OSError:  # the server's folder is being removed, say
            continue
        if len(content) != _FIELDS.size:
            continue  # it is being made
        pid, num_open, num_loops, *fields = _FIELDS.unpack(content)
        if not 0 < num_loops <= MAX_LOOPS:
            continue
        beats, num_ended, names = fields[:MAX_LOOPS], fields[MAX_LOOPS], fields[MAX_LOOPS + 1 :]
        loops = [name.rstrip(b"\0").decode(errors="replace") for name in names[:num_loops]]
        beats_us = dict(zip(loops, beats, strict=False))
        yield Pulse(path.name.removeprefix(_PREFIX), pid, num_open, num_ended, beats_us)
