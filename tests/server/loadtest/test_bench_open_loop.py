"""What benches see of a load that they play themselves: each request's own outcome, in the order of the plan."""

from __future__ import annotations

import random

import pytest

from bench.kit.open_loop import Fate, Planned, play
from builder.serving import TritonServer

pytestmark = pytest.mark.server
SLOW_MS = 700


def test_outcomes_are_those_of_the_plan(slow_server: TritonServer) -> None:
    hplms = random.Random(2024).choices(("acme/topics", "fail/UNAVAILABLE", f"slow/{SLOW_MS}", "too/late"), k=60)
    deadlines_ms = [0 if hplm == "too/late" else 120_000 for hplm in hplms]
    planned = [
        Planned(number / 50, hplm, f"text {number}", deadline_ms)
        for number, (hplm, deadline_ms) in enumerate(zip(hplms, deadlines_ms, strict=True))
    ]
    played = play(slow_server.grpc_url, planned)
    expected = {"fail/UNAVAILABLE": Fate.REJECTED, "too/late": Fate.UNSENT}
    assert played.fates == [expected.get(hplm, Fate.ON_TIME) for hplm in hplms]
    for one, sent in zip(planned, played.sent, strict=True):
        assert sent.sent_s is None or sent.sent_s >= one.at_s, sent
        if one.hplm.startswith("slow/"):
            assert sent.done_s >= one.at_s + SLOW_MS / 1000, sent
    answered = len(hplms) - hplms.count("fail/UNAVAILABLE") - hplms.count("too/late")
    assert played.attainment == pytest.approx(answered / len(hplms))
    assert played.admitted == answered
    assert played.client_cores > 0
