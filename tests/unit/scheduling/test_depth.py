"""Rows that are likely to leave early cost less, and their tenants pay for the layers that they pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from admitted_rows import CAPACITY, MINI, Row, admission_of
from backends.registry.entries import DomainEntry, HplmEntry
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.settings import AdmissionSettings, ShareSettings
from backends.scheduling.waiting_room import WaitingRoom
from backends.stack_key import STUDENTS, StackKey

MODEL = CostModel(1000.0, 10.0, 5.0, 0.01, 20.0)
LADDER = {"after": 2, "layers": 6, "answered_early": 0.75}


def row(tenant: str, num_tokens: int, depth: float, **changes: int) -> Row:
    return Row(tenant, num_tokens, arrived_us=0, depth=depth, **changes)


@pytest.mark.parametrize(("level", "depth"), [("full", 1.0), ("early", 1 / 3), ("auto", 1 - 0.75 * 2 / 3)])
def test_a_row_s_likely_depth_is_by_what_was_certified(level: str, depth: float) -> None:
    domain = DomainEntry("mini", "general", 1, ())
    metrics = {"levels": ["early", "full"], "ladder": LADDER}
    entry = HplmEntry(1, "acme/area", 1, "classification", ("a", "b"), domain, "folder", metrics)
    assert entry.likely_depth(level) == pytest.approx(depth)
    assert HplmEntry(1, "acme/area", 1, "classification", ("a",), domain, "folder").likely_depth(level) == 1.0


@pytest.mark.parametrize(
    ("level", "depth", "kept"), [("full", 1.0, 1.0), ("early", 1 / 3, 1.0), ("auto", 1 / 3 + 0.25 * 0.6 * 2 / 3, 0.6)]
)
def test_layers_count_as_far_as_a_row_keeps_its_tokens(level: str, depth: float, kept: float) -> None:
    metrics = {"levels": ["early", "full"], "ladder": {**LADDER, "kept_tokens": 0.6, "pruned_by": "attention"}}
    entry = HplmEntry(
        1, "acme/area", 1, "classification", ("a", "b"), DomainEntry("mini", "general", 1, ()), "", metrics
    )
    assert entry.likely_depth(level) == pytest.approx(depth) and entry.kept_tokens(level) == kept


@pytest.mark.parametrize(("level", "depth"), [("full", 1.0), ("early", 1 / 3), ("auto", 1 - 0.75 * 2 / 3)])
def test_no_row_settles_where_late_ones_are_rejected(level: str, depth: float) -> None:
    """Nothing is gained by that: the least that such a row takes is what it is likely to take."""
    metrics = {"levels": ["early", "full"], "ladder": LADDER, "declared": {"late": "reject"}}
    domain = DomainEntry("mini", "general", 1, ())
    entry = HplmEntry(1, "acme/area", 1, "classification", ("a", "b"), domain, "folder", metrics)
    assert entry.least_depth(level) == entry.likely_depth(level) == pytest.approx(depth)
    assert entry.exit_depth(level) == (1.0 if level == "full" else pytest.approx(1 / 3))
    assert not entry.may_settle and HplmEntry(1, "acme/area", 1, "ner", ("a",), domain, "folder").may_settle


@pytest.mark.parametrize(
    ("level", "least", "most"), [("students", 0.2, 0.4), ("students-1", 0.2, 0.2), ("students-2", 0.4, 0.4)]
)
def test_a_row_for_students_is_likely_to_get_the_least(level: str, least: float, most: float) -> None:
    """Admission promises with that; more of them run where the load allows it."""
    metrics = {"levels": ["early", "full"], "ladder": LADDER, "students": {"set": "e", "best": 2, "depth": 0.2}}
    domain = DomainEntry("mini", "general", 1, ())
    entry = HplmEntry(1, "acme/area", 1, "classification", ("a", "b"), domain, "folder", metrics)
    depths = entry.least_depth(level), entry.likely_depth(level), entry.most_depth(level)
    assert depths == (least, least, most)
    assert entry.most_depth("full") == 1.0 and entry.most_depth("auto") == entry.likely_depth("auto")
    assert entry.levels == ("early", "full", "students", "students-1", "students-2")
    way = entry.way(level)
    assert way == (entry.stack(level), least, entry.kept_tokens(level), least, most, 1.0) and entry.way(level) is way
    other = replace(entry, metrics={"levels": ["full"]})
    assert other.way("auto").likely_depth == 1.0, "a version has ways of its own"


@pytest.mark.parametrize(
    "offered",
    [{"set": "e", "best": 2}, {"set": "e", "best": 9, "depth": 0.2}, {"set": "e", "best": 2, "depth": 0}, "2", ["e"]],
)
def test_students_that_cannot_be_read_are_none(offered: object) -> None:
    """A server that fails over one version's metrics would serve nobody."""
    domain = DomainEntry("mini", "general", 1, ())
    entry = HplmEntry(1, "acme/area", 1, "classification", ("a",), domain, "folder", {"students": offered})
    assert entry.students is None and entry.levels == ("full",) and entry.best_students == 0


def test_a_batch_s_shape_counts_tokens_as_far_as_they_pass() -> None:
    rows = [row("a", 100, 1.0), row("b", 40, 0.5, hplm_key=2)]
    assert BatchShape.of(rows) == BatchShape(2, 100 + 20, 100 * 100 + 0.5 * 40 * 40, 2)
    assert MODEL.row_us(40, 0.5) == 10 + 5 * 20 + 0.01 * 800


def test_what_a_batch_takes_anyway_it_takes_as_far_as_its_deepest_row_passes() -> None:
    """A row is likely to pass 0.8 of the layers that passes all with 0.6, and else the half."""
    rows = [replace(row("a", 100, 0.8), least_depth=0.5), replace(row("b", 40, 0.8), least_depth=0.5)]
    settled, full = replace(rows[0], depth=0.5), row("c", 10, 1.0)
    waits_to_be_sure = [replace(each, least_depth=0.8, leaves_at=0.5) for each in rows]
    assert BatchShape.of(waits_to_be_sure) == BatchShape.of(rows), "whether it may settle changes nothing here"
    assert BatchShape.of(rows[:1]).depth == pytest.approx(0.8)
    assert BatchShape.of(rows).depth == pytest.approx(0.5 * 0.16 + 0.84)
    assert (BatchShape.of([settled]).depth, BatchShape.of([settled, full]).depth) == (0.5, 1.0)
    assert BatchShape.of(rows, [0.5, 0.5]).depth == 0.5
    by_students = replace(rows[0], depth=0.6, least_depth=0.2, root=StackKey("mini", STUDENTS))
    assert BatchShape.of([by_students]).depth == 0.6
    assert MODEL.predict_us(BatchShape(1, 20.0, 800.0, 1, 0.5)) == pytest.approx(500 + 10 + 100 + 8 + 20)


def test_a_row_that_keeps_few_tokens_passes_all_layers_with_them() -> None:
    """It goes on with 0.6, as it passes 0.5 anyway and half of the rest with half of its tokens: 0.5 + 0.6 · 0.25."""
    pruned = replace(row("a", 100, 0.65), least_depth=0.5, kept=0.5)
    shape = BatchShape.of([pruned])
    assert (shape.tokens, shape.squared_lengths) == (pytest.approx(65), pytest.approx(6500))
    assert shape.depth == pytest.approx(0.5 * 0.4 + 0.6)
    assert BatchShape.of([pruned], [0.5]).depth == 0.5 and BatchShape.of([pruned], [0.7]).depth == 1.0
    assert BatchShape.of([replace(pruned, depth=0.5)]).depth == 0.5, "one that settles goes nowhere"


def test_waiting_rows_are_added_up_by_tokens_and_by_cost() -> None:
    waiting = WaitingRoom([row("a", 100, 1.0), row("b", 40, 0.5)])
    assert waiting.lengths_by_stack(waiting.num_tokens > 0) == [(MINI, 2, 140, 120.0, 10_800.0)]


def test_a_tenant_of_hard_texts_pays_for_them() -> None:
    admission = admission_of(LiveCosts(MODEL))
    easy, hard = row("easy", 100, 0.5), row("hard", 100, 0.5)
    other = row("other", 100, 1.0)
    for each in (easy, hard, other):
        assert admission.admit([each], 0) is None
    admission.take_batch([0, 1], 0)
    starts = {tenant: admission.accounts.shares.start_us(tenant) for tenant in ("easy", "hard")}
    admission.accounts.spend_depth(easy, 0.5)
    admission.accounts.spend_depth(hard, 1.0)
    assert admission.accounts.shares.start_us("easy") == starts["easy"]
    assert admission.accounts.shares._ends_us.get("hard", 0.0) - admission.accounts.shares._ends_us.get(
        "easy", 0.0
    ) == pytest.approx(MODEL.row_us(100) - MODEL.row_us(100, 0.5))


def test_a_tenant_of_only_hard_texts_at_fifty_times_its_share_delays_nobody() -> None:
    """Its rows were likely to leave, and none does: who requests no more than a share is in the next batch."""
    admission = admission_of(LiveCosts(MODEL), AdmissionSettings(shares=ShareSettings(burst_us=0)))
    for number in range(20):
        now_us = number * 100_000
        for _ in range(50):
            admission.admit([row("hard", 60, 0.5)], now_us)
        easy = row("easy", 60, 0.5)
        assert admission.admit([easy], now_us) is None
        first = np.argsort(admission.waiting.start_us, kind="stable")[: CAPACITY.max_rows]
        taken = admission.take_batch(first.tolist(), now_us)
        assert easy in taken and len(taken) == CAPACITY.max_rows
        for each in taken:
            admission.accounts.spend_depth(each, 0.5 if each is easy else 1.0)


def test_costs_learn_from_what_was_passed() -> None:
    """A batch whose rows left early was no sign of a fast machine."""
    costs = LiveCosts(MODEL)
    admission = admission_of(costs)
    likely, passed = BatchShape(64, 6400.0, 640_000.0, 1), BatchShape(64, 3200.0, 320_000.0, 1)
    for number in range(20):
        admission.batches.taken(number * 100_000)
        admission.batches.began(MINI, likely, number * 100_000)
        took_us = round(MODEL.predict_us(passed))
        admission.batches.finished(number * 100_000 + took_us, passed=passed)
    assert costs.predict_us(likely) == pytest.approx(MODEL.predict_us(likely), rel=0.01)
