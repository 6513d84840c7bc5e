"""`bench.replace` on two paced servers: all three ways, each with an outcome for every request."""

from __future__ import annotations

import pytest

from bench.kit.drifting.runs import played_drift
from bench.kit.placing.drift import DriftSettings, Way, windows_of

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.serial]
SEED = 5
SETTINGS = DriftSettings(
    num_roots=5, num_devices=2, drifts=(True,), window_s=40.0, observed=0.3, load=0.4, alone_us=40_000
)
"""With this seed the root that surges stands nowhere before, so that another placement is found."""
WAYS = (Way.STATIC, Way.ALWAYS, Way.FREE)
"""Whether a restart pays depends on how fast the machine is."""


def test_all_ways_are_sent_the_same_requests_and_lose_none() -> None:
    played = played_drift(SETTINGS, SEED, WAYS)
    planned = len(windows_of(SETTINGS, SEED)[1].traffic)
    assert [(run.way, len(run.requests)) for run in played.runs] == [(way, planned) for way in WAYS]
    assert [run.lost for run in played.runs] == [0, 0, 0]
    assert played.costs.reload_s > 0
    static, always, free = played.runs
    assert static.moved.servers == free.moved.servers == 0
    assert always.moved.servers >= 1 and always.moved.took_s > 0
    assert free.on_time > static.on_time
