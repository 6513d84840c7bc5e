"""The gate that every ticket passes before `hplm_upper` believes a word of it."""

from __future__ import annotations

from collections.abc import Iterable

from backends.clock import now_us
from backends.errors import InvalidArgumentError, UnavailableError
from backends.seal import OWN_SEAL, Seal
from backends.wire import TICKET, Int64Array, SealedTicket, Ticket, decode_tickets

AGE_LIMIT_S = 60.0
_PERIODS = 4
"""The used tickets of each part of the age limit are forgotten together."""


class TicketGate:
    """Accepts tickets that this server has sealed lately, each of them once; called by one thread at a time.

    Args:
        seal: Seal of this server.
        age_limit_s: Longest time that a ticket may take from `hplm_lower` to here.
    """

    def __init__(self, seal: Seal = OWN_SEAL, age_limit_s: float = AGE_LIMIT_S) -> None:
        self._seal = seal
        self._age_limit_us = int(1e6 * age_limit_s)
        self._period_us = self._age_limit_us // _PERIODS
        self._used: dict[int, set[int]] = {}
        """Serials of used tickets by the period in which they were sealed."""

    def accept(self, rows: Int64Array) -> list[Ticket]:
        """Decode the tickets of a request.

        Raises:
            InvalidArgumentError: One was not made by this server, or has been used before.
            UnavailableError: One is too old.
        """
        sealed = decode_tickets(rows, self._seal)
        self._require_fresh(sealed)
        self._use(sealed)
        return [one.ticket for one in sealed]

    def _require_fresh(self, sealed: Iterable[SealedTicket]) -> None:
        now = now_us()
        for one in sealed:
            if abs(now - one.signed_us) > self._age_limit_us:
                raise UnavailableError(f"{TICKET} is older than {self._age_limit_us // 1_000_000} s; ask model hplm")

    def _use(self, sealed: Iterable[SealedTicket]) -> None:
        for one in sealed:
            period = one.signed_us // self._period_us
            if period not in self._used:
                self._forget(before=now_us() - self._age_limit_us)
            used = self._used.setdefault(period, set())
            if one.serial in used:
                raise InvalidArgumentError(f"{TICKET} has been used before; ask model hplm")
            used.add(one.serial)

    def _forget(self, before: int) -> None:
        for period in [one for one in self._used if (one + 1) * self._period_us < before]:
            del self._used[period]
