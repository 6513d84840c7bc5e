"""Loads that this process plays itself, against a real Triton over both protocols."""

from __future__ import annotations

import random

import pytest

from builder.serving import TritonServer
from hplm_client.address import Protocol
from loadtest.in_process import play
from loadtest.outcome import Kind
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target

pytestmark = pytest.mark.server
SLOW_MS = 700


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_outcomes_are_those_of_the_plan(slow_server: TritonServer, protocol: Protocol) -> None:
    hplms = random.Random(7).choices(("acme/topics", "fail/UNAVAILABLE", f"slow/{SLOW_MS}"), k=60)
    rows = [Row(number / 50, hplm, f"text {number}", 120_000) for number, hplm in enumerate(hplms)]
    url = slow_server.grpc_url if protocol == "grpc" else slow_server.http_url
    played = play(Target(url, protocol), Schedule.of(rows))
    requests = played.requests
    assert requests.hplms.tolist() == hplms
    for row, hplm in enumerate(hplms):
        assert requests.kinds[row] == (Kind.REJECTED if hplm == "fail/UNAVAILABLE" else Kind.ANSWERED), hplm
        assert (requests.done_s - requests.sent_s)[row] >= (SLOW_MS / 1000 if hplm.startswith("slow/") else 0)
    assert (requests.lag_s >= 0).all()
    rejected = hplms.count("fail/UNAVAILABLE")
    assert played.reasons.total() == rejected
    assert played.attainment == pytest.approx(1 - rejected / len(hplms))
    assert played.client_cores > 0


def test_a_deadline_that_the_server_cannot_keep_is_missed(slow_server: TritonServer) -> None:
    played = play(Target(slow_server.grpc_url), Schedule.of([Row(0.0, f"slow/{SLOW_MS}", "text", SLOW_MS // 7)]))
    assert played.requests.kinds.tolist() == [Kind.REJECTED]
    assert played.overtaken == 1
    assert played.attainment == 0.0


def test_a_closed_loop_answers_every_row_once(slow_server: TritonServer) -> None:
    rows = [Row(0.0, "acme/topics", f"text {number}") for number in range(100)]
    played = play(Target(slow_server.grpc_url), Schedule.of(rows), in_flight=8)
    played.require_all_answered()
    assert played.requests.numbers.tolist() == list(range(100))
    assert played.rows_per_s(edge_rows=8) > 0
