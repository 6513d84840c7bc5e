"""Tickets as callers may make them up, through the gate of `hplm_upper`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from backends.engine.ticket_gate import TicketGate
from backends.home import Home
from backends.wire import LEVELS, Ticket, encode_tickets
from bench.kit.fuzz.arrays import bad_array
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target


class Tickets(Target):
    """Sealed rows with damage, in wrong shapes and types; none that differs from what was sealed is believed."""

    name = "tickets"
    cases = 200_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._gate = TicketGate()

    def attempt(self, draw: Draw) -> None:
        tickets = [_ticket(draw) for _ in range(draw.choice((1, 1, 2, 5)))]
        sealed = encode_tickets(tickets)
        rows = sealed if draw.happens(0.05) else bad_array(draw, sealed)
        believed = self._gate.accept(rows)
        if Counter(believed) - Counter(tickets):
            raise HarmedError("a ticket that was changed, or was used before, is believed")


def _ticket(draw: Draw) -> Ticket:
    tokens = draw.randint(1, 512)
    deadline_us = draw.choice((None, draw.randint(1, 2**62)))
    middle = draw.randint(1, tokens - 1) if tokens > 1 and draw.happens(0.3) else None
    return Ticket(draw.randint(-5, 2**62), tokens, draw.happens(0.1), deadline_us, middle, level=draw.choice(LEVELS))
