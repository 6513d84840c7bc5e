"""The wait forecast: what the engine tells the processes in front of it, which reject rows by it before computing them.

It says when a row that arrives now would be answered: by its length, because some policies answer short rows first; by
its deadline, because the longer a row may wait, the more rows overtake it; and for the tenants that have requested most
beyond their shares. A process that has not counted a row's tokens yet knows a lower bound of them.

A few numbers in a file that both map into memory, so that writing and reading cost microseconds. A forecast counts for
a second: an engine that has nothing to say, or that is gone, keeps no row out. Nothing in it comes from a ticket.
It counts with the earliest answers of the rows that wait, as the engine has them settle before it rejects a row: of
all, or of the tenant's own where it has requested beyond its share. Of the row that arrives no layer counts, as only
its hPLM and its request say how many it passes at least.
"""

from __future__ import annotations

import mmap
import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

from backends.scheduling.admission import Admission
from backends.server_folder import file_prefix, made_anew, mapped, server_folder
from backends.stack_key import StackKey

LENGTHS = (1, 8, 12, 16, 20, 24, 32, 48, 80)
"""Tokens of a row, or more up to the next."""
MAX_TENANTS = 8
FRESH_US = 1_000_000
"""A forecast counts for so long."""
_DEADLINES = (1, 2, 4, 8, 32)
"""In multiples of the shortest time to an answer."""
_NAME_BYTES = 8
_CURVE = f"{len(_DEADLINES)}q"
_FIELDS = struct.Struct(f"=3q{len(LENGTHS)}q{_CURVE}" + _CURVE * len(LENGTHS) + f"{_NAME_BYTES}s{_CURVE}" * MAX_TENANTS)
"""When it was told; tokens that wait; whether order is fair; work by length; deadlines; answers by length and deadline;
tenants and their answers by deadline."""
_NO_TENANT = bytes(_NAME_BYTES)
_NO_CURVE = (_NO_TENANT, *[0] * len(_DEADLINES))
_CHECK = struct.Struct("=I")
_SIZE_BYTES = _FIELDS.size + _CHECK.size
_FURTHEST_US = 10**15
_LOOK_EVERY_US = 1_000_000

Curve = Sequence[float]
"""When rows are answered that are due at each of the told deadlines."""


@dataclass(frozen=True)
class WaitForecast:
    """How long rows wait for their answers, in microseconds from when it was told.

    Shape:
        deadlines_in_us: `[D]`, ascending.
        by_length: `[L]` curves of `[D]`, for rows of each of `LENGTHS`.
        by_tenant: Curves of at most `MAX_TENANTS` tenants, keyed by a hash; other tenants' rows go by length alone.
        work_us: `[L]`, what a row of each of `LENGTHS` adds to the wait of those behind it; 0 where none is told.
        waiting_tokens: Tokens of the rows that wait in the engine.
        is_fair: Whether rows run in the order of arrival but for fair shares, so that arrivals delay later ones.
    """

    deadlines_in_us: Sequence[float]
    by_length: Sequence[Curve]
    by_tenant: Mapping[bytes, Curve] = field(default_factory=dict)
    work_us: Sequence[float] = (0.0,) * len(LENGTHS)
    waiting_tokens: int = 0
    is_fair: bool = True

    @classmethod
    def of(cls, admission: Admission[Any], now_us: int) -> WaitForecast:
        stack = admission.fastest_stack
        if not admission.predicts or stack is None:
            return cls.alike(0.0)

        def finish_in_us(num_tokens: int, deadline_in_us: float, tenant: str) -> float:
            row = _LikelyRow(stack, num_tokens, now_us, now_us + round(deadline_in_us), tenant)
            supposed = admission.settling.if_own(tenant) if tenant else admission.settling.if_all()
            return admission.finish_in_us(row, now_us, not tenant, supposed)

        first_us = finish_in_us(LENGTHS[0], 0.0, "")
        deadlines_in_us = [max(1.0, first_us) * times for times in _DEADLINES]

        def curve(num_tokens: int, tenant: str = "") -> Curve:
            if admission.is_fair:  # what overtakes a row does not depend on its deadline
                in_us = finish_in_us(num_tokens, 0.0, tenant) if tenant else first_us
                return [in_us] * len(deadlines_in_us)
            return [finish_in_us(num_tokens, us, tenant) for us in deadlines_in_us]

        lengths = LENGTHS if admission.goes_by_length else LENGTHS[:1]
        by_length = [curve(num_tokens) for num_tokens in lengths]
        by_length += by_length[-1:] * (len(LENGTHS) - len(lengths))
        tenants = admission.beyond_share(now_us, MAX_TENANTS)
        return cls(
            deadlines_in_us,
            by_length,
            {_hashed(name): curve(LENGTHS[0], name) for name in tenants},
            admission.work_us(stack, LENGTHS),
            int(admission.waiting.num_tokens.sum()),
            admission.is_fair,
        )

    @classmethod
    def alike(cls, finish_in_us: float, tenants_in_us: Mapping[str, float] | None = None) -> WaitForecast:
        """The same for rows of all lengths and deadlines, but for some tenants'."""
        by_tenant = {_hashed(name): [in_us] * len(_DEADLINES) for name, in_us in (tenants_in_us or {}).items()}
        deadlines_in_us = [float(times) for times in _DEADLINES]
        return cls(deadlines_in_us, [[finish_in_us] * len(_DEADLINES)] * len(LENGTHS), by_tenant)

    def finish_in_us(self, num_tokens: int, tenants: Iterable[str] = (), deadline_in_us: float | None = None) -> float:
        """Return how long until a row is answered; of rows of several tenants, until the last one is."""
        curves = [self.by_length[bisect_right(LENGTHS, max(1, num_tokens)) - 1]]
        curves += filter(None, (self.by_tenant.get(_hashed(tenant)) for tenant in tenants))
        return max(self._at(curve, deadline_in_us) for curve in curves)

    def row_work_us(self, num_tokens: int) -> float:
        """What a row adds to the wait of those behind it; between the lengths that are told, in proportion."""
        index = bisect_right(LENGTHS, max(1, num_tokens)) - 1
        return self.work_us[index] * max(1, num_tokens) / LENGTHS[index] if index else self.work_us[0]

    def _at(self, curve: Curve, deadline_in_us: float | None) -> float:
        """Read a curve between two deadlines; beyond the last one, it goes on as between the last two."""
        x = self.deadlines_in_us
        if deadline_in_us is None or deadline_in_us <= x[0]:
            return curve[0]
        right = min(bisect_right(x, deadline_in_us), len(x) - 1)
        slope = (curve[right] - curve[right - 1]) / (x[right] - x[right - 1])
        return curve[right - 1] + slope * (deadline_in_us - x[right - 1])


@dataclass(frozen=True, slots=True)
class _LikelyRow:
    """A row of a tenant that requests nothing else, unless one is named; it passes any number of layers."""

    root: StackKey
    num_tokens: int
    arrived_us: int
    deadline_us: int
    tenant: str = ""
    hplm_key: int = 0
    depth: float = 0.0
    least_depth: float = 0.0
    most_depth: float = 1.0
    exit_depth: float = 0.0
    kept: float = 1.0


class ForecastWriter:
    """What one engine tells. `name` is that of its model instance."""

    def __init__(self, name: str) -> None:
        self._path = server_folder() / f"{_prefix()}{name}"
        self._memory = made_anew(self._path, _SIZE_BYTES)

    def tell(self, forecast: WaitForecast, now_us: int) -> None:
        tenants = forecast.by_tenant
        told = _FIELDS.pack(
            now_us,
            forecast.waiting_tokens,
            int(forecast.is_fair),
            *_whole(forecast.work_us),
            *_whole(forecast.deadlines_in_us),
            *_whole(chain.from_iterable(forecast.by_length)),
            *chain.from_iterable((name, *_whole(curve)) for name, curve in tenants.items()),
            *_NO_CURVE * (MAX_TENANTS - len(tenants)),
        )
        self._memory[:] = told + _CHECK.pack(zlib.crc32(told))

    def close(self) -> None:
        self._memory.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Told:
    """A forecast, and when it was told."""

    at_us: int
    forecast: WaitForecast

    def is_fresh(self, now_us: int) -> bool:
        return 0 <= now_us - self.at_us <= FRESH_US

    def finish_us(self, num_tokens: int, tenants: Sequence[str], deadline_us: int | None) -> int:
        deadline_in_us = None if deadline_us is None else deadline_us - self.at_us
        return self.at_us + int(self.forecast.finish_in_us(num_tokens, tenants, deadline_in_us))


class ForecastReader:
    """Reads what the engines of this server tell, for any thread; new ones are looked for every second."""

    def __init__(self) -> None:
        self._memories: dict[tuple[Path, int], _Memory] = {}
        """Keyed by path and inode: an engine that is loaded anew writes another file of the same name."""
        self._look_at_us = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            for memory in self._memories.values():
                memory.close()
            self._memories.clear()

    def told(self, now_us: int) -> list[Told]:
        """The last forecast of each engine that has told one, fresh or not."""
        return [told for told in self._read(now_us) if told is not None]

    def finish_us(
        self, now_us: int, num_tokens: int = 1, tenants: Iterable[str] = (), deadline_us: int | None = None
    ) -> int:
        """When a row that arrives now would be answered by the engine that is free first; `now_us` if none tells."""
        told = self._read(now_us)
        names = list(tenants)
        finishes: list[int] = []
        for one in told:
            if one is None or not one.is_fresh(now_us):
                return now_us
            finishes.append(one.finish_us(num_tokens, names, deadline_us))
        return max(now_us, min(finishes, default=now_us))

    def _read(self, now_us: int) -> list[Told | None]:
        """Read what each engine has told; None for one that has not yet."""
        with self._lock:
            if now_us >= self._look_at_us:
                self._look()
                self._look_at_us = now_us + _LOOK_EVERY_US
            return [memory.read() for memory in self._memories.values()]

    def _look(self) -> None:
        found = {(path, inode) for path in server_folder().glob(f"{_prefix()}*") if (inode := _inode(path)) is not None}
        for gone in self._memories.keys() - found:
            self._memories.pop(gone).close()
        for path, inode in found - self._memories.keys():
            memory = mapped(path, _SIZE_BYTES)
            if memory is not None:
                self._memories[path, inode] = _Memory(memory)


class _Memory:
    """One engine's file. What has been read is kept until the engine tells something new."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._check = b""
        self._told: Told | None = None

    def read(self) -> Told | None:
        """None where nothing was told yet, or for a torn forecast."""
        check = self._memory[_FIELDS.size : _SIZE_BYTES]
        if check != self._check or self._told is None:
            self._told = _parsed(self._memory[:])
            self._check = check if self._told is not None else b""
        return self._told

    def close(self) -> None:
        self._memory.close()


def _prefix() -> str:
    return f"{file_prefix('backlog')}-"


def _whole(times_us: Iterable[float]) -> list[int]:
    """A cost model may predict more than the file has room for."""
    return [int(us) if us < _FURTHEST_US else _FURTHEST_US for us in times_us]


def _inode(path: Path) -> int | None:
    """None for a file that is gone meanwhile."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _parsed(content: bytes) -> Told | None:
    told, (check,) = content[: _FIELDS.size], _CHECK.unpack(content[_FIELDS.size :])
    if zlib.crc32(told) != check:
        return None
    told_us, waiting_tokens, is_fair, *fields = _FIELDS.unpack(told)
    work_us, fields = fields[: len(LENGTHS)], fields[len(LENGTHS) :]
    num, tenants_at = len(_DEADLINES), len(_DEADLINES) * (1 + len(LENGTHS))
    deadlines_in_us, *by_length = (fields[at : at + num] for at in range(0, tenants_at, num))
    by_tenant = {fields[at]: fields[at + 1 : at + 1 + num] for at in range(tenants_at, len(fields), num + 1)}
    by_tenant.pop(_NO_TENANT, None)
    return Told(told_us, WaitForecast(deadlines_in_us, by_length, by_tenant, work_us, waiting_tokens, bool(is_fair)))


def _hashed(tenant: str) -> bytes:
    """A hash that is never `_NO_TENANT`, and hardly ever the same for two tenants."""
    return blake2b(tenant.encode(), digest_size=_NAME_BYTES).digest()
