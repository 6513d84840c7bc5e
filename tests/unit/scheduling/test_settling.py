"""Under load, rows settle for the answer of an earlier layer before any is rejected."""

from __future__ import annotations

import random

import numpy as np
import pytest

from admitted_rows import CAPACITY, MINI, Row, admission_of, indices_of, run
from backends.engine.job import Job
from backends.registry.entries import DomainEntry, HplmEntry
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.settings import AdmissionSettings

MODEL = CostModel(1000.0, 0.0, 10.0, 0.0, 0.0)
LEAST = 1 / 3


def row(deadline_us: int | None, least_depth: float = LEAST, tenant: str = "acme", arrived_us: int = 0) -> Row:
    return Row(tenant, 100, arrived_us, deadline_us, least_depth=least_depth)


def admission_without_margin() -> Admission[Row]:
    return admission_of(LiveCosts(MODEL), AdmissionSettings(margin_percent=0))


def busy() -> Admission[Row]:
    """An admission whose engine runs a batch for another 2 ms."""
    admission = admission_without_margin()
    running = row(None, 1.0)
    assert admission.admit([running], 0) is None
    run(admission, [running], 0)
    return admission


def test_a_row_settles_only_where_its_deadline_takes_it() -> None:
    admission = busy()
    in_time, settled, late = row(4_000), row(4_700), row(3_300)
    assert admission.admit([in_time], 0) is None
    assert not in_time.settles
    # Behind a row of 1,000 us, after batches of 2,000 and 1,000 us: at 5,000 us, or at 4,333 us.
    assert admission.admit([settled], 0) is None
    assert (settled.settles, settled.depth) == (True, LEAST)
    rejection = admission.admit([late], 0)
    assert rejection is not None
    assert rejection.reason == "predicted_late"


def test_a_row_without_an_earlier_answer_is_rejected() -> None:
    admission = busy()
    assert admission.admit([row(3_900, 1.0)], 0) is not None
    assert admission.admit([row(3_900)], 0) is None


def test_a_settled_row_delays_others_by_the_layers_that_it_passes() -> None:
    admission = busy()
    assert admission.admit([row(3_400)], 0) is None
    assert admission.finish_in_us(row(None), 0) == pytest.approx(2_000 + 1_000 + 1_000 * LEAST + 1_000)


def test_rows_of_a_batch_settle_before_it_is_staged() -> None:
    """Admitted in full, and late meanwhile; what that saves is its tenant's."""
    admission = busy()
    late, patient = row(5_500), row(9_000, tenant="other")
    assert admission.admit([late, patient], 0) is None
    assert not late.settles
    paid_us = admission._shares._ends_us["acme"]
    chosen = indices_of(admission, [late, patient])
    assert admission.infeasible(chosen, 1_000) == []
    assert (late.settles, patient.settles) == (False, False)
    assert admission.infeasible(chosen, 1_900) == []
    assert not late.settles
    admission.batches.finished(2_000)
    admission.batches.began(MINI, BatchShape(1, 100.0, 0.0, 1), 2_900)
    assert admission.infeasible(chosen, 3_000) == chosen[:1]
    assert (late.settles, patient.settles) == (True, False)
    assert admission._shares._ends_us["acme"] == pytest.approx(paid_us - 1_000 * (1 - LEAST))


def test_the_answer_of_an_exit_is_there_before_its_batch_ends() -> None:
    admission = busy()
    settled, others = row(6_000), [row(None, 1.0, "other") for _ in range(3)]
    assert admission.admit([settled, *others], 0) is None
    chosen = indices_of(admission, [settled, *others])
    # The batch takes 5,000 us from 2,000 us on; after a third of the layers of all four rows it is at 4,333 us.
    assert admission.infeasible(chosen, 0) == []
    assert settled.settles
    assert admission._late([settled, *others], 3_700) == [0]


def test_nothing_is_rejected_whose_earliest_answer_was_in_time() -> None:
    """In random queues, against finish times that are added up row by row."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    settled = rejected = 0
    for _ in range(300):
        admission = busy()
        waiting: list[Row] = []
        for _ in range(chance.randint(1, CAPACITY.max_rows - 1)):
            arriving = row(chance.randint(1, 12_000), chance.choice([LEAST, 0.5, 1.0]), tenant="acme")
            rejection = admission.admit([arriving], 0)
            depth = arriving.least_depth if rejection is not None or arriving.settles else 1.0
            at_us = 2_000 + 1_000 + 1_000 * (sum(one.depth for one in waiting) + depth)
            assert arriving.deadline_us is not None
            is_late = at_us > arriving.deadline_us + 1e-6
            assert is_late == (rejection is not None), f"seed {seed}"
            in_full_us = at_us + 1_000 * (1 - depth)
            assert arriving.settles or rejection is not None or in_full_us <= arriving.deadline_us, f"seed {seed}"
            settled += arriving.settles and rejection is None
            rejected += rejection is not None
            if rejection is None:
                waiting.append(arriving)
    assert min(settled, rejected) > 30


@pytest.mark.parametrize(("level", "settles"), [("auto", True), ("full", False), ("early", False)])
def test_a_request_may_forbid_it(level: str, settles: bool) -> None:
    """One for `early` has settled from the start."""
    ladder = {"after": 2, "layers": 6, "answered_early": 0.5}
    domain = DomainEntry("mini", "general", 1, ())
    entry = HplmEntry(
        1, "acme/area", 1, "classification", ("a", "b"), domain, "f", {"levels": ["early", "full"], "ladder": ladder}
    )
    job = Job(entry, np.zeros((4, 8), np.float16), False, None, print, level=level)
    assert job.settles == (level == "early")
    assert job.settle() == settles
    assert job.depth == (1.0 if level == "full" else pytest.approx(1 / 3))
    assert not job.settle()
