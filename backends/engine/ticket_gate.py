"""The gate that every ticket passes before a model of the upper layers believes a word of it."""

from __future__ import annotations

from collections.abc import Iterable

from backends.clock import now_us
from backends.engine.used_tickets import UsedTickets
from backends.errors import InvalidArgumentError, UnavailableError
from backends.seal import OWN_SEAL, Seal
from backends.stage_wire import MATES, Mates, decode_mates
from backends.wire import TICKET, Int64Array, SealedTicket, Ticket, decode_tickets

AGE_LIMIT_S = 60.0


class TicketGate:
    """Accepts tickets that this server has sealed lately, each of them once; called by one thread at a time.

    Args:
        seal: Seal of this server.
        age_limit_s: Longest time that a ticket may take from `hplm_lower` to here.
    """

    def __init__(self, seal: Seal = OWN_SEAL, age_limit_s: float = AGE_LIMIT_S) -> None:
        self._seal = seal
        self._age_limit_us = int(1e6 * age_limit_s)
        self._used = UsedTickets(self._age_limit_us)

    def accept(self, rows: Int64Array) -> list[Ticket]:
        """Decode the tickets of a request.

        Raises:
            InvalidArgumentError: One was not made by this server, or has been used before.
            UnavailableError: One is too old.
        """
        sealed, now = decode_tickets(rows, self._seal), now_us()
        self._require_fresh(sealed, now)
        self._use(sealed, now)
        return [one.ticket for one in sealed]

    def accept_mates(self, rows: Int64Array, tickets: Int64Array) -> list[Mates]:
        """Decode what the stage before says of rows with these tickets; from there to here is a short way.

        Raises:
            InvalidArgumentError: It was not made by this server, or for other tickets.
            UnavailableError: It is too old.
        """
        sealed, now = decode_mates(rows, tickets, self._seal), now_us()
        for one in sealed:
            if abs(now - one.signed_us) > 1e6 * AGE_LIMIT_S:
                raise UnavailableError(f"{MATES} is older than {AGE_LIMIT_S:.0f} s; ask model hplm")
        return [one.mates for one in sealed]

    def _require_fresh(self, sealed: Iterable[SealedTicket], now: int) -> None:
        for one in sealed:
            if abs(now - one.signed_us) > self._age_limit_us:
                raise UnavailableError(f"{TICKET} is older than {self._age_limit_us // 1_000_000} s; ask model hplm")

    def _use(self, sealed: Iterable[SealedTicket], now: int) -> None:
        for one in sealed:
            if not self._used.use(one.serial, one.signed_us, now):
                raise InvalidArgumentError(f"{TICKET} has been used before; ask model hplm")
