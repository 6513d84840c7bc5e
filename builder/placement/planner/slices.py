"""Which spans of a traffic a plan is made for, and which are held out to judge it: never the same ones.

A search sees a span whole, or pieces of it at its full rate, so that it meets bursts and drift wherever they are. And
it sees some requests for each model that is asked for: to one that it never meets it would give no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from builder.placement.planner.cells import MOST_DEVICES
from builder.placement.planner.traffic import Traffic, one_after_the_other

_NUM_SPANS = 20
_BUSIEST, _RANDOM = 3, 3
MOST_REQUESTS = 30_000
"""Of all spans that a search sees, for each cell of devices; more where pieces would be too short."""
PIECES = 4
"""Of a span with more than its share of them."""
_LEAST_PATIENCES = 5
"""In the time that a request has, queues grow as long as they get: a shorter piece would show none."""
_FEW_REQUESTS = 200


@dataclass(frozen=True, eq=False)
class Moments:
    """What is chosen of a traffic by the number of requests alone, whatever they ask for.

    Attributes:
        seen: By a search.
        held_out: The spans that are kept apart.
        others: All spans but these; parts of them are seen.
    """

    seen: Traffic
    held_out: tuple[Traffic, ...]
    others: tuple[Traffic, ...]


@dataclass(frozen=True, eq=False)
class Slices:
    """What a search sees, and the spans that are kept apart; none where there is too little traffic."""

    training: Traffic
    apart: tuple[Traffic, ...] = ()

    @cached_property
    def held_out(self) -> Traffic | None:
        """The spans that are kept apart, one after the other."""
        return one_after_the_other(self.apart) if self.apart else None

    def held_out_at(self, load: float) -> Traffic:
        """Return the same at a multiple of the load."""
        return one_after_the_other([span.faster(load) for span in self.apart])


def slices_of(traffic: Traffic, seed: int, num_devices: int = 1) -> Slices:
    """Take some moments of a traffic, and as large a share of the requests for each model that these do not ask for."""
    if len(traffic) < _FEW_REQUESTS:
        return Slices(traffic)
    moments = moments_of(traffic, seed, num_devices)
    added, apart = [], [*moments.held_out]
    for model in np.setdiff1d(traffic.models, moments.seen.models).tolist():
        count = max(1, round(len(moments.seen) * float((traffic.models == model).mean())))
        taken, apart = _taken(model, count, moments.others, apart)
        added.append(taken)
    return Slices(one_after_the_other([moments.seen, *added]), tuple(apart))


def moments_of(traffic: Traffic, seed: int, num_devices: int = 1) -> Moments:
    """Take the busiest spans and some random ones, and hold one of each kind out.

    Seen are at most `MOST_REQUESTS` for each cell of devices, and for fast ones up to `PIECES` times as many.
    """
    begin_us = int(traffic.arrived_us[0])
    edges = np.linspace(begin_us, begin_us + traffic.duration_us + 1, _NUM_SPANS + 1).astype(np.int64).tolist()
    spans = [traffic.within(begin, end) for begin, end in pairwise(edges)]
    by_size = sorted((span for span in spans if len(span)), key=len, reverse=True)
    busiest, others = by_size[:_BUSIEST], by_size[_BUSIEST:]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(others)).tolist()
    shuffled = [others[place] for place in order]
    # The second busiest: a plan that has seen the busiest span should stand a little less.
    held_out = (*busiest[1:2], *shuffled[:1])
    training = [*busiest[:1], *busiest[2:], *shuffled[1:_RANDOM]]
    share = -(-num_devices // MOST_DEVICES) * MOST_REQUESTS // max(1, len(training))
    seen = one_after_the_other([piece for each in training for piece in _pieces(each, share, rng)])
    return Moments(seen, held_out, (*training, *shuffled[_RANDOM:]))


def _taken(
    model: int, count: int, others: Sequence[Traffic], apart: Sequence[Traffic]
) -> tuple[Traffic, list[Traffic]]:
    """Take the first requests for a model in the span that has most of them, and return what is left apart.

    A span that is kept apart is taken from only where no other asks for the model.
    """
    own = max((span.of([model]) for span in others), key=len)
    if len(own):
        return _part(own, 0, count), [*apart]
    fullest = max(range(len(apart)), key=lambda place: int((apart[place].models == model).sum()))
    span = apart[fullest]
    is_taken = np.zeros(len(span), np.bool_)
    is_taken[np.flatnonzero(span.models == model)[:count]] = True
    left = [span.kept(~is_taken) if place == fullest else each for place, each in enumerate(apart)]
    return span.kept(is_taken), left


def _pieces(span: Traffic, share: int, rng: np.random.Generator) -> list[Traffic]:
    """Cut a piece from a random place of each of a span's equal parts, unless it is within its share as a whole."""
    if len(span) <= share:
        return [span]
    patience_us = float(np.median(span.deadlines_us - span.arrived_us))
    least = int(_LEAST_PATIENCES * patience_us * len(span) / max(1, span.duration_us))
    size = min(max(least, share // PIECES), share)
    if PIECES * size >= len(span):
        return [span]
    edges = np.linspace(0, len(span), PIECES + 1).astype(np.int64).tolist()
    return [_part(span, int(rng.integers(begin, end - size + 1)), size) for begin, end in pairwise(edges)]


def _part(traffic: Traffic, begin: int, size: int) -> Traffic:
    kept = slice(begin, begin + size)
    return Traffic(traffic.arrived_us[kept], traffic.models[kept], traffic.deadlines_us[kept])
