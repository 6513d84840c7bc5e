"""What of a traffic a search sees: moments of all of it, of a size that a search can play."""

from __future__ import annotations

import numpy as np
import pytest

from builder.placement.planner.planner import Fleet, plan
from builder.placement.planner.slices import MOST_REQUESTS, PIECES, moments_of, slices_of
from builder.placement.planner.traffic import Int64, Traffic
from placement_cases import devices, model_of

_SPAN_US = 5_000_000


def even(rate_per_s: int, patience_us: int, duration_s: int = 100) -> Traffic:
    """Return requests at even distances, for one model."""
    arrived_us = np.arange(0, duration_s * 1_000_000, 1_000_000 // rate_per_s)
    return Traffic(arrived_us, np.zeros(len(arrived_us), np.int64), arrived_us + patience_us)


def seen_us(traffic: Traffic, seed: int, num_devices: int = 1) -> Int64:
    """Return when the requests that a search sees came in the recording, in order. Each has a model of its own."""
    known = Traffic(traffic.arrived_us, np.arange(len(traffic)), traffic.deadlines_us)
    seen = moments_of(known, seed, num_devices).seen
    assert len(np.unique(seen.models)) == len(seen)
    return np.sort(traffic.arrived_us[seen.models])


def test_a_fast_fleet_sees_moments_of_whole_spans(seed: int) -> None:
    """Spans of 5 s, of 50,000 requests each; the first 7,500 of them came within 0.75 s."""
    arrived_us = seen_us(even(10_000, 20_000), seed)
    assert len(arrived_us) <= MOST_REQUESTS
    spans = np.unique(arrived_us // _SPAN_US)
    assert len(spans) == 4
    for span in spans.tolist():
        within_us = arrived_us[arrived_us // _SPAN_US == span] - span * _SPAN_US
        assert within_us.min() < _SPAN_US / PIECES and within_us.max() > _SPAN_US * (PIECES - 1) / PIECES
        assert len(np.unique(within_us * PIECES // _SPAN_US)) == PIECES


def test_pieces_last_longer_than_queues_do(seed: int) -> None:
    """With 100 ms for a request a piece takes 500 ms, and the bound grows."""
    assert len(seen_us(even(10_000, 100_000), seed)) == pytest.approx(4 * PIECES * 5_000, rel=1e-3)
    assert len(seen_us(even(10_000, 2_000_000), seed)) == PIECES * MOST_REQUESTS


def test_pieces_that_would_be_nearly_all_are_the_whole_span(seed: int) -> None:
    """Spans of 5 s have 10,000 requests; with 800 ms for each a piece would take 4 s."""
    traffic = even(2_000, 800_000)
    assert len(seen_us(traffic, seed)) == 4 * 10_000
    starts_us = slices_of(traffic, seed).training.arrived_us
    assert np.count_nonzero(np.diff(starts_us) > 500) == 3, "the spans are not cut"


def test_a_large_fleet_sees_more(seed: int) -> None:
    traffic = even(10_000, 20_000)
    assert len(seen_us(traffic, seed, 64)) == MOST_REQUESTS
    assert len(seen_us(traffic, seed, 65)) == 2 * MOST_REQUESTS


def test_what_is_short_is_seen_whole(seed: int) -> None:
    arrived_us = seen_us(even(100, 20_000), seed)
    assert len(arrived_us) == 4 * 500


def test_a_seed_has_the_same_pieces(seed: int) -> None:
    traffic = even(10_000, 20_000)
    np.testing.assert_array_equal(seen_us(traffic, seed), seen_us(traffic, seed))
    assert (seen_us(traffic, seed) != seen_us(traffic, seed + 1)).any()


def test_a_root_that_is_asked_for_late_in_a_span_is_placed() -> None:
    """Each span's first half asks for one root only; one device has room for one."""
    traffic = even(10_000, 20_000)
    is_late = traffic.arrived_us % _SPAN_US >= _SPAN_US // 2
    models = [model_of("early", 120, 960), model_of("late", 120, 960)]
    asked = Traffic(traffic.arrived_us, is_late.astype(np.int64), traffic.deadlines_us)
    made = plan(Fleet(tuple(models), devices(3), {model.root: model.root for model in models}, asked))
    assert len(made.groups_of("late")) + len(made.groups_of("early")) == 3
    assert made.alternatives[0].held_out == pytest.approx(1.0, abs=0.03)
    assert any(line.startswith("'late' makes 5") or line.startswith("'late' makes 4") for line in made.decisions)


def test_a_root_that_is_asked_for_in_one_span_only_is_seen_and_placed(seed: int) -> None:
    """Whichever span it is: one that is seen, held out, or neither."""
    traffic = even(100, 20_000)
    span = traffic.arrived_us // _SPAN_US
    models = (model_of("steady", 120, 960), model_of("seldom", 120, 960))
    moments = moments_of(traffic, seed)
    apart = {int(each.arrived_us[0] // _SPAN_US) for each in moments.held_out}
    for own in np.unique(span).tolist():
        asked = Traffic(traffic.arrived_us, (span == own).astype(np.int64), traffic.deadlines_us)
        slices = slices_of(asked, seed)
        seen = slices.training.counts(2)[1]
        # It has a twentieth of the requests.
        is_seen_anyway = len(slices.training) == len(moments.seen)
        assert seen == (500 if is_seen_anyway else 100), f"span {own}, seed {seed}"
        assert sum(map(len, slices.apart)) == 1_000 - 100 * (own in apart), f"span {own}, seed {seed}"
        if own in apart or own == 0:
            made = plan(Fleet(models, devices(2), {model.root: model.root for model in models}, asked), seed)
            assert len(made.groups_of("seldom")) == 1, f"span {own}, seed {seed}"


def test_what_is_seen_of_many_seldom_roots_is_in_proportion(seed: int) -> None:
    """A hundred roots in turn, each in a hundredth of the time."""
    traffic = even(10_000, 20_000)
    in_turns = Traffic(traffic.arrived_us, traffic.arrived_us // 1_000_000, traffic.deadlines_us)
    slices, moments = slices_of(in_turns, seed), moments_of(in_turns, seed)
    counts = slices.training.counts(100)
    missed = np.setdiff1d(np.arange(100), moments.seen.models)
    assert len(missed) and (counts[missed] == round(len(moments.seen) / 100)).all(), f"seed {seed}"
    np.testing.assert_array_equal(slices.training.arrived_us[: len(moments.seen)], moments.seen.arrived_us)
    taken = sum(map(len, moments.held_out)) - sum(map(len, slices.apart))
    held_out_alone = np.setdiff1d(missed, np.concatenate([each.models for each in moments.others]))
    assert taken == counts[held_out_alone].sum(), f"seed {seed}"
