"""What became of a request, by its planned deadline."""

from __future__ import annotations

import pytest

from backends.scheduling.refusal import hopeless, late_on_arrival, late_waiting, predicted_late
from bench.kit.open_loop import Fate, Planned, Played, Sent, fate_of

PLANNED = Planned(at_s=10.0, hplm="acme/topics", text="a text", deadline_ms=500)


def rejected(words: object) -> Sent:
    return Sent(10.1, 10.4, str(words), "UNAVAILABLE")


@pytest.mark.parametrize(
    ("sent", "fate"),
    [
        (Sent(10.1, 10.5), Fate.ON_TIME),
        (Sent(10.4, 10.501), Fate.LATE),
        (Sent(None, 10.6), Fate.UNSENT),
        (rejected(predicted_late(700_000, 400_000)), Fate.REJECTED),
        (rejected("3 rows of this tenant wait, as many as may"), Fate.REJECTED),
        (rejected(late_waiting()), Fate.EXPIRED),
        (rejected(late_on_arrival()), Fate.EXPIRED),
        (rejected(hopeless()), Fate.EXPIRED),
        (rejected("the deadline passed 3 ms before the answer was here"), Fate.OVERTAKEN),
        (Sent(10.1, 12.0, "no answer in time", "TIMEOUT"), Fate.FAILED),
    ],
)
def test_fate_is_judged_by_the_planned_deadline(sent: Sent, fate: Fate) -> None:
    assert fate_of(PLANNED, sent) == fate


def test_a_request_carries_what_is_left_of_its_planned_deadline() -> None:
    assert PLANNED.left_ms(10.0) == 500
    assert PLANNED.left_ms(10.2) == pytest.approx(300, abs=1)
    assert PLANNED.left_ms(10.4995) < 1


def test_unsent_requests_are_missed_but_not_admitted() -> None:
    sent = [Sent(10.0, 10.2), Sent(None, 10.6), rejected(predicted_late(700_000, 400_000)), rejected(late_waiting())]
    played = Played([PLANNED] * len(sent), sent, client_cores=0.1)
    assert (played.attainment, played.admitted, played.admitted_on_time) == (0.25, 2, 0.5)
