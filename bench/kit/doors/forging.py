"""Tickets that `hplm_upper` must not believe: forged, changed, of another server, too old, used before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from backends import wire
from backends.clock import now_us
from backends.seal import Seal
from backends.wire import TICKET_COLUMNS, TICKET_VERSION, Int64Array, Ticket, encode_tickets

_EXTREMES = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63))
_HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class Forger:
    """Somebody who has seen real tickets of the server that were used. `key` is that of an hPLM's live version.

    The server's own seal is needed for tickets that are too old: it stands for one that was kept for an hour.
    """

    rng: np.random.Generator
    used: Int64Array
    key: int
    own: Seal
    other: Seal

    @property
    def ways(self) -> Mapping[str, Callable[[], Int64Array]]:
        """The ways to make one row that is no good, by their names."""
        return {
            "made up": self.made_up,
            "bit flipped": self.bit_flipped,
            "extreme integer": self.extreme,
            "column of another": self.mixed,
            "another server's": lambda: encode_tickets([self.wanted()], self.other),
            "used before": self.replayed,
            "an hour old": lambda: self.sealed_at(now_us() - _HOUR_US),
            "of the next hour": lambda: self.sealed_at(now_us() + _HOUR_US),
        }

    def rows(self, count: int) -> tuple[Int64Array, Sequence[str]]:
        """Make so many, in all ways alike, and name the way of each."""
        ways = self.ways
        names = [list(ways)[number] for number in self.rng.integers(len(ways), size=count)]
        return np.concatenate([ways[name]() for name in names]), names

    def wanted(self) -> Ticket:
        """A ticket with the deadline that one would like to have."""
        return Ticket(self.key, 8, False, now_us() + 1000)

    def made_up(self) -> Int64Array:
        row = self.rng.integers(-(2**63), 2**63 - 1, (1, len(TICKET_COLUMNS)), np.int64)
        row[0, 0] = TICKET_VERSION
        return row

    def bit_flipped(self) -> Int64Array:
        row = self._seen()
        row.view(np.uint8)[0, self.rng.integers(8, row.nbytes)] ^= 1 << int(self.rng.integers(8))
        return row

    def extreme(self) -> Int64Array:
        row = self._seen()
        column = int(self.rng.integers(1, len(TICKET_COLUMNS)))
        row[0, column] = self.rng.choice([value for value in _EXTREMES if value != row[0, column]])
        return row

    def mixed(self) -> Int64Array:
        """The facts of one ticket under the seal of another."""
        row, other = self._seen(), encode_tickets([self.wanted()], self.own)
        row[0, 1:-2] = other[0, 1:-2]
        return row

    def replayed(self) -> Int64Array:
        return self._seen()

    def sealed_at(self, at_us: int) -> Int64Array:
        with patch.object(wire, "now_us", lambda: at_us):
            return encode_tickets([self.wanted()], self.own)

    def _seen(self) -> Int64Array:
        number = int(self.rng.integers(len(self.used)))
        return self.used[number : number + 1].copy()
