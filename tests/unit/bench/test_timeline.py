from __future__ import annotations

import time

import pytest

from bench.kit.timeline import Asked, Timeline
from hplm_client import NotFoundError
from waiting import LIMIT_S


@pytest.fixture
def moments() -> tuple[Timeline, list[float]]:
    """Version 1, then 2, then 1 again, then a deletion; and a moment inside each of these times."""
    timeline, inside = Timeline(), []
    for version in (1, 2, 1, None):
        with timeline.change("acme/x") as published:
            published += [version] if version else []
        time.sleep(0.02)
        inside.append(time.monotonic())
        time.sleep(0.02)
    return timeline, inside


def asked(version: int | None, sent_s: float, received_s: float | None = None) -> Asked:
    error = NotFoundError("gone") if version is None else None
    return Asked("acme/x", sent_s, sent_s if received_s is None else received_s, version, error)


def test_an_answer_is_judged_by_the_time_it_was_under_way(moments: tuple[Timeline, list[float]]) -> None:
    timeline, (first, second, third, last) = moments
    for version, good, bad in ((1, (first, third), (second, last)), (2, (second,), (first, third, last))):
        assert all(timeline.was_live(asked(version, at), 0.0) for at in good)
        assert not any(timeline.was_live(asked(version, at), 0.0) for at in bad)
    assert timeline.was_live(asked(2, first, third), 0.0)
    assert timeline.was_live(asked(2, third), LIMIT_S)  # the server had not looked yet
    assert not timeline.was_live(asked(2, first), LIMIT_S)  # but it knows nothing that is to come
    assert not timeline.was_live(asked(3, first, last), 1.0)


def test_a_refusal_is_excused_only_around_the_deletion(moments: tuple[Timeline, list[float]]) -> None:
    timeline, (first, second, third, last) = moments
    assert timeline.was_deleted_under_way(asked(None, third, last))
    assert not timeline.was_deleted_under_way(asked(None, first, second))
    assert not timeline.was_deleted_under_way(asked(None, last))
