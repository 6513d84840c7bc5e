"""What benches see of a load that they play themselves: each request's own outcome, in the order of the plan."""

from __future__ import annotations

import random

import pytest

from bench.kit.open_loop import Planned, play
from builder.serving import TritonServer

pytestmark = pytest.mark.server
SLOW_MS = 700


def test_outcomes_are_those_of_the_plan(slow_server: TritonServer) -> None:
    seed = random.randrange(1 << 32)
    hplms = random.Random(seed).choices(("acme/topics", "fail/UNAVAILABLE", f"slow/{SLOW_MS}"), k=60)
    planned = [Planned(number / 50, hplm, f"text {number}", 120_000) for number, hplm in enumerate(hplms)]
    played = play(slow_server.grpc_url, planned)
    assert len(played.sent) == len(planned)
    for hplm, one in zip(hplms, played.sent, strict=True):
        assert (one.error is None) == (hplm != "fail/UNAVAILABLE"), (seed, hplm, one)
        assert one.error is None or "UNAVAILABLE" in one.error, (seed, one)
        assert one.lag_s >= 0, (seed, one)
        if hplm.startswith("slow/"):
            assert one.taken_s >= SLOW_MS / 1000, (seed, one)
    refused = hplms.count("fail/UNAVAILABLE")
    assert sum(played.errors.values()) == refused
    assert played.attainment == pytest.approx(1 - refused / len(hplms))
    assert played.client_cores > 0
