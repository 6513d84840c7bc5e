"""`bench.replace` on two paced servers: all three ways, each with an outcome for every request."""

from __future__ import annotations

import pytest

from bench.kit.drifting.judgement import WAYS
from bench.kit.drifting.runs import played_drift
from bench.kit.placing.drift import DriftSettings, windows_of

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.serial]
SETTINGS = DriftSettings(
    num_roots=3, num_devices=2, drifts=(True,), window_s=15.0, observed=0.3, load=0.3, alone_us=40_000
)


def test_all_ways_are_sent_the_same_requests_and_lose_none() -> None:
    played = played_drift(SETTINGS, seed=7)
    planned = len(windows_of(SETTINGS, 7)[1].traffic)
    assert [(run.way, run.planned) for run in played.runs] == [(way, planned) for way in WAYS]
    assert [run.lost for run in played.runs] == [0, 0, 0]
    assert played.costs.reload_s > 0
    static, _, free = played.runs
    assert static.moved.servers == free.moved.servers == 0
    assert free.on_time > planned / 2
