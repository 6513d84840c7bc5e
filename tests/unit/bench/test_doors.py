"""`bench.doors`: its bad tickets are bad in every way, and an answer to the wrong caller shows in its figures."""

from __future__ import annotations

import numpy as np
import pytest

from backends.engine.ticket_gate import TicketGate
from backends.errors import InvalidArgumentError, UnavailableError
from backends.seal import Seal
from backends.wire import Ticket, encode_tickets
from bench.kit.doors.calls import HIDDEN_ROWS, Told
from bench.kit.doors.costs import MEGABYTE, _megabyte, ticket_us
from bench.kit.doors.forging import Forger
from bench.kit.doors.matrix import Asked
from bench.kit.doors.tenants import FOREIGN, RIGHT

ABSENT = Told(words="hPLM 'nobody00/topic' does not exist")


def test_no_way_makes_a_ticket_that_is_believed() -> None:
    own, rng = Seal(bytes(32)), np.random.default_rng(3)
    used = encode_tickets([Ticket(7, 8, False, None)] * 20, own)
    gate = TicketGate(own)
    gate.accept(used)
    forger = Forger(rng, used, 7, own, Seal(bytes([1] * 32)))
    rows, names = forger.rows(2000)
    assert set(names) == set(forger.ways)
    for number in range(len(rows)):
        with pytest.raises((InvalidArgumentError, UnavailableError)):
            gate.accept(rows[number : number + 1])
    assert gate.accept(encode_tickets([forger.wanted()], own))


@pytest.mark.parametrize(
    ("kind", "told", "is_right", "tells_apart"),
    [
        (RIGHT, Told(["acme/topic"]), True, False),
        (RIGHT, Told(["globex/topic"]), False, False),
        (RIGHT, Told([f"{HIDDEN_ROWS} (3, 64)"]), True, False),
        (RIGHT, ABSENT, False, False),
        (FOREIGN, Told(["acme/topic"]), False, True),
        (FOREIGN, Told([f"{HIDDEN_ROWS} (3, 64)"]), False, True),
        (FOREIGN, Told(words="hPLM 'acme/topic' does not exist"), True, False),
        (FOREIGN, Told(words="hPLM 'acme/topic' is not yours"), True, True),
    ],
)
def test_what_is_wrong_is_found(kind: str, told: Told, is_right: bool, tells_apart: bool) -> None:
    asked = Asked("gRPC", "infer", "acme", kind, told, ABSENT)
    assert (asked.is_right, asked.tells_apart) == (is_right, tells_apart)


def test_a_megabyte_is_one_whatever_it_is_of() -> None:
    assert {len(_megabyte(piece).encode()) for piece in ("a", "中文字符", "😀🚀")} == {MEGABYTE}


def test_a_seal_costs_what_a_ticket_without_one_does_not() -> None:
    assert ticket_us(turns=3) > 0
