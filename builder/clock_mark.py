"""Whether this machine's wall clock was set lately: then `hplm gc` cannot tell how old things are.

The age of a file or a version is a difference of two times of the wall clock. Builds and collections note in the home
how far that clock was ahead of the one that counts since the machine's start, which nobody sets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from backends.errors import ConflictError, CorruptFileError
from backends.fields import Fields
from backends.home import Home
from backends.storage import write_file

_TOLERATED_S = 60.0
_MOST_STARTS = 16
_HOUR_S = 3600.0


def _seconds_since_start() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _start() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class Clocks:
    """The wall clock, the clock since the machine's start, and a name of that start; tests have their own."""

    wall_s: Callable[[], float] = time.time
    since_start_s: Callable[[], float] = _seconds_since_start
    start: Callable[[], str] = _start


@dataclass(frozen=True)
class _Mark:
    """`ahead_s` of the wall clock; it was set by `set_by_s`, which was noticed at `noticed_s` since the start."""

    ahead_s: float
    set_by_s: float = 0.0
    noticed_s: float | None = None


def note_clock(home: Home, clocks: Clocks = Clocks()) -> None:
    """Note how the clocks stand; the caller has `no_build_begins`."""
    _noted(home, clocks)


def require_steady_clock(home: Home, for_s: float, clocks: Clocks = Clocks()) -> None:
    """Check that the wall clock has not been set within the last `for_s`, as far as the home knows.

    Raises:
        ConflictError: It was.
    """
    mark = _noted(home, clocks)
    if mark.noticed_s is None or (left_s := mark.noticed_s + for_s - clocks.since_start_s()) <= 0:
        return
    way = "forward" if mark.set_by_s > 0 else "back"
    raise ConflictError(
        f"the clock of this machine was set {way} by {_shown(abs(mark.set_by_s))}, so ages cannot be told: "
        f"gc works again in {_shown(left_s)}, or with shorter --grace and --unfinished"
    )


def _noted(home: Home, clocks: Clocks) -> _Mark:
    path, start = home.run / "clock.json", clocks.start()
    marks = _read(path)
    ahead_s, mark = clocks.wall_s() - clocks.since_start_s(), marks.get(start)
    if mark is not None and abs(ahead_s - mark.ahead_s) <= _TOLERATED_S:
        return mark
    now = _Mark(ahead_s) if mark is None else _Mark(ahead_s, ahead_s - mark.ahead_s, clocks.since_start_s())
    marks.pop(start, None)
    marks[start] = now
    last = dict(list(marks.items())[-_MOST_STARTS:])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({name: asdict(one) for name, one in last.items()}).encode())
    return now


def _read(path: Path) -> dict[str, _Mark]:
    """Of each start of a machine that the home was used since; an unreadable file is that of a new home."""
    with suppress(OSError, ValueError, RecursionError, CorruptFileError):
        starts = Fields(json.loads(path.read_text(encoding="utf-8")), str(path))
        return {name: _mark(starts.part(name)) for name in starts.names()}
    return {}


def _mark(stored: Fields) -> _Mark:
    noticed_s = None if stored.value("noticed_s") is None else stored.number("noticed_s")
    return _Mark(stored.number("ahead_s"), stored.number("set_by_s"), noticed_s)


def _shown(span_s: float) -> str:
    return f"{span_s / _HOUR_S:.1f} h" if span_s >= _HOUR_S else f"{span_s:.0f} s"
