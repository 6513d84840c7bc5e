"""What became of a request, by its planned deadline."""

from __future__ import annotations

import pytest
from played import Ended, played

from backends.scheduling.rejection import infeasible, late_on_arrival, late_waiting, predicted_late
from bench.kit.fates import Fate, Fates
from hplm_client import RequestTimeoutError, UnavailableError


def rejected(words: object) -> Ended:
    return Ended(0.05, UnavailableError(str(words)))


@pytest.mark.parametrize(
    ("ended", "fate"),
    [
        (Ended(0.1), Fate.ON_TIME),
        (Ended(0.103), Fate.OVERTAKEN),
        (Ended(0.106), Fate.LATE),
        (Ended(None), Fate.UNSENT),
        (rejected(predicted_late(700_000, 400_000)), Fate.REJECTED),
        (rejected("3 rows of this tenant wait, as many as may"), Fate.REJECTED),
        (rejected(late_waiting()), Fate.EXPIRED),
        (rejected(late_on_arrival()), Fate.EXPIRED),
        (rejected(infeasible()), Fate.EXPIRED),
        (rejected("the deadline passed 3 ms before the answer was here"), Fate.OVERTAKEN),
        (Ended(1.2, RequestTimeoutError("no answer")), Fate.FAILED),
    ],
)
def test_fate_is_judged_by_the_planned_deadline(ended: Ended, fate: Fate) -> None:
    assert Fates(played([ended])).each.tolist() == [fate]


def test_unsent_requests_are_missed_but_not_admitted() -> None:
    ends = [Ended(0.02), Ended(None), rejected(predicted_late(700_000, 400_000)), rejected(late_waiting())]
    fates = Fates(played(ends))
    assert (fates.played.attainment, fates.admitted, fates.admitted_on_time) == (0.25, 2, 0.5)
