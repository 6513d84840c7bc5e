"""Ways to place at other loads: judged by held-out requests, and drawn."""

from __future__ import annotations

import re

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from builder.placement.planner.comparison_picture import draw_comparison
from builder.placement.planner.hysteresis import Hysteresis
from builder.placement.planner.judging import LOADS
from builder.placement.planner.planner import Fleet, plan
from builder.placement.planner.replan import replan
from builder.placement.planner.slices import slices_of
from placement_cases import devices, gamma_traffic, model_of

BASELINES = ("dedicated", "selective replication", "round robin")
"""Of those that fit."""


def bursty_fleet(seed: int, duration_s: float = 120.0) -> Fleet:
    """Four roots of which a device holds one, at a third of what four devices answer."""
    models = tuple(model_of(f"r{number}", 120_000, 640) for number in range(4))
    traffic = gamma_traffic([2.5] * 4, 4.0, duration_s, [600_000] * 4, np.random.default_rng(seed))
    return Fleet(models, devices(4), {model.root: model.root for model in models}, traffic)


def test_requests_come_faster_and_keep_their_time(seed: int) -> None:
    slices = slices_of(bursty_fleet(seed).traffic, seed)
    held_out, faster = slices.held_out, slices.held_out_at(4.0)
    assert held_out is not None
    np.testing.assert_array_equal(slices.held_out_at(1.0).arrived_us, held_out.arrived_us)
    np.testing.assert_array_equal(faster.models, held_out.models)
    np.testing.assert_array_equal(faster.deadlines_us - faster.arrived_us, held_out.deadlines_us - held_out.arrived_us)
    busy_us = [sum(span.duration_us for span in slices.apart), faster.duration_us]
    assert busy_us[0] / 4 < busy_us[1] < busy_us[0] / 4 + 700_000
    first = len(slices.apart[0])
    assert faster.arrived_us[first] > faster.deadlines_us[:first].max(), "no span meets the queues of another"


def test_ways_are_judged_at_other_loads(seed: int) -> None:
    made = plan(bursty_fleet(seed), seed, loads=LOADS)
    ways = {each.name: each for each in made.alternatives}
    for name in ("this plan", *BASELINES):
        shares = dict(ways[name].over_load)
        assert tuple(shares) == LOADS and shares[1.0] == ways[name].held_out
        assert shares[4.0] < shares[0.5]
    assert ways["all everywhere"].over_load == ()
    assert all(each.over_load == () for each in plan(bursty_fleet(seed), seed).alternatives)


def test_the_picture_has_a_line_of_each_way(seed: int) -> None:
    svg = draw_comparison(plan(bursty_fleet(seed), seed, loads=LOADS))
    for name in ("this plan", *BASELINES, "4 ×", "100 %"):
        assert f">{name}<" in svg
    assert ">all everywhere<" not in svg and "prefers-color-scheme: dark" in svg
    lines = [line for line in re.findall(r'points="([^"]*)"', svg) if len(line.split()) == len(LOADS)]
    assert len(lines) == 1 + len(BASELINES)


def test_a_change_is_compared_with_what_is_placed(seed: int) -> None:
    fleet = bursty_fleet(seed)
    made = replan(fleet, plan(fleet, seed), Hysteresis(), seed, loads=LOADS)
    assert {each.name for each in made.alternatives if each.over_load} >= {"this plan", "as it is placed"}
    assert ">as it is placed<" in draw_comparison(made)


def test_few_requests_say_nothing_of_other_loads() -> None:
    with pytest.raises(InvalidArgumentError, match="too few requests to hold some out"):
        plan(bursty_fleet(1, duration_s=5.0), loads=LOADS)
