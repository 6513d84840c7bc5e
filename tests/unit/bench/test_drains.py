"""`bench.drains`: what a request counts as, by when it was sent and how it ended."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.drains import Drained, Planned, figures, plan
from bench.kit.drains.clients import ANSWERED, KINDS, Ended
from bench.kit.drains.judgement import Drain

DRAIN = Drain(ordered_s=10.0, unready_s=10.1, closed_s=11.2, ended_s=14.0)


@pytest.mark.parametrize(
    ("sent_s", "ended_s", "error", "expected"),
    [
        (9.0, 9.5, ANSWERED, "answered"),
        (9.9, 10.5, ANSWERED, "answered draining"),
        (11.0, 11.5, ANSWERED, "answered draining"),
        (10.5, 11.3, "NotReadyError", "rejected"),
        (10.05, 11.3, "NotReadyError", "failed"),
        (13.0, 13.1, "ConnectionFailedError", "refused"),
        (9.0, 9.1, "ConnectionFailedError", "failed"),
        (11.1, 13.9, "ConnectionLostError", "failed"),
        (13.8, 13.9, "ConnectionLostError", "cut"),
        (13.8, 13.9, "RequestCancelledError", "cut"),
        (13.8, 13.9, "ServerError", "failed"),
        (9.0, 39.0, "RequestTimeoutError", "failed"),
        (9.0, 9.1, "UnavailableError", "failed"),
        (14.0, 14.1, "ConnectionFailedError", "later"),
        (16.0, 16.1, ANSWERED, "answered again"),
    ],
)
def test_a_request_counts_by_when_it_was_sent_and_how_it_ended(
    sent_s: float, ended_s: float, error: str, expected: str
) -> None:
    assert DRAIN.outcome(Ended(sent_s, ended_s, error)) == expected


def test_each_kind_of_client_meets_both_orders_and_both_come_equally_often() -> None:
    found = Counter(plan(20))
    assert {planned.client for planned in found} == set(KINDS)
    assert len(found) == 8
    assert sum(count for planned, count in found.items() if planned.order == "SIGTERM") == 10


def test_figures_are_of_all_drains() -> None:
    requests = [Ended(9.9, 10.5, ANSWERED), Ended(10.05, 11.3, "NotReadyError", "server is stopping")]
    one = Drained(Planned("gRPC", "SIGTERM"), 70.0, DRAIN, 0, 4.0, requests)
    other = Drained(Planned("HTTP", "SIGTERM"), 70.0, DRAIN, 1, 6.0, [Ended(12.0, 12.1, "NotReadyError")])
    found = figures([one, other])
    assert (found["drain_failed"], found["drain_rejected"], found["bad_exits"]) == (1, 1, 1)
    assert (found["answered"], found["answered_draining"], found["open_at_order"]) == (1, 1, 1)
    assert (found["restart_ready_s_p50"], found["restart_ready_s_max"]) == (5.0, 6.0)
    assert found["unready_s_max"] == pytest.approx(0.1)
    assert one.failures() == [
        "gRPC, SIGTERM: sent +0.050 s after the order, ended +1.300 s: NotReadyError: server is stopping"
    ]
