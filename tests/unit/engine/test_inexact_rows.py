"""What `hplm_lower` says about a row's fragments, on its way into the answer and onto its tenant's account."""

from __future__ import annotations

import json
import queue

import numpy as np
import pytest

from backends.home import Home
from backends.scheduling.accounts import Accounts
from backends.scheduling.tenants import NO_TENANT
from backends.wire import Ticket, encode_tickets, fold_rows
from served_engine import HIDDEN, Responses, keys_of, running

Charge = tuple[str, float]


def test_an_inexact_answer_says_so_and_computing_is_charged_unless_the_canary_asks(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    charges: list[Charge] = []
    charge = Accounts.spend

    def watched(accounts: Accounts[object], tenant: str, cost_us: float) -> None:  # type: ignore[type-var]
        charges.append((tenant, cost_us))
        charge(accounts, tenant, cost_us)  # type: ignore[arg-type]

    monkeypatch.setattr(Accounts, "spend", watched)
    keys = keys_of(tiny_home)
    responses: Responses = queue.Queue()
    tickets = [
        Ticket(keys["acme/topic"], 3, False, None, exact=False, computing_us=700),
        Ticket(keys["globex/topic"], 3, False, None),
        Ticket(keys["globex/topic"], 3, False, None, computing_us=900, is_canary=True),
    ]
    with running(tiny_home) as service:
        rows = [np.zeros((3, HIDDEN), np.float16)] * 3
        service.submit(fold_rows(rows), encode_tickets(tickets), [b""] * 3, responses.put)
        answers = responses.get(timeout=30)
    assert isinstance(answers, list)
    limited, exact, canary = map(json.loads, answers)
    assert canary["hplm"] == "globex/topic"
    assert limited["exact"] is False
    assert "exact" not in exact
    assert charges == [("acme", 700), (NO_TENANT, 900)]
