"""Which spans of a traffic a plan is made for, and which are held out to judge it: never the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from builder.placement.planner.traffic import Traffic, one_after_the_other

_NUM_SPANS = 20
_BUSIEST, _RANDOM = 3, 3
MOST_REQUESTS = 30_000
"""Of all spans that a search sees; a longer one is cut after its share of them, at its full rate."""
_FEW_REQUESTS = 200


@dataclass(frozen=True, eq=False)
class Slices:
    """Attributes: `held_out` is None where there is too little traffic to keep any apart."""

    training: Traffic
    held_out: Traffic | None


def slices_of(traffic: Traffic, seed: int) -> Slices:
    """Take the busiest spans and some random ones, and hold one of each kind out."""
    if len(traffic) < _FEW_REQUESTS:
        return Slices(traffic, None)
    begin_us = int(traffic.arrived_us[0])
    edges = np.linspace(begin_us, begin_us + traffic.duration_us + 1, _NUM_SPANS + 1).astype(np.int64).tolist()
    spans = [traffic.within(begin, end) for begin, end in pairwise(edges)]
    by_size = sorted((span for span in spans if len(span)), key=len, reverse=True)
    busiest, others = by_size[:_BUSIEST], by_size[_BUSIEST:]
    order = np.random.default_rng(seed).permutation(len(others)).tolist()
    drawn = [others[place] for place in order[:_RANDOM]]
    # The second busiest: a plan that has seen the busiest span should stand a little less.
    held_out = [*busiest[1:2], *drawn[:1]]
    training = [*busiest[:1], *busiest[2:], *drawn[1:]]
    share = MOST_REQUESTS // max(1, len(training))
    seen = one_after_the_other([_first(each, share) for each in training])
    return Slices(seen, one_after_the_other(held_out) if held_out else None)


def _first(traffic: Traffic, count: int) -> Traffic:
    return Traffic(traffic.arrived_us[:count], traffic.models[:count], traffic.deadlines_us[:count])
