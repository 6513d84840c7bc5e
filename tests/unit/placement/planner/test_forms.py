"""The times and cuts of each model in each number of stages, and what batches add to them."""

from __future__ import annotations

import pytest

from backends.errors import InvalidArgumentError
from builder.placement.planner.forms import Forms
from builder.placement.planner.model import Model
from placement_cases import model_of


def test_stages_of_a_full_batch_add_up_to_what_it_takes() -> None:
    model = model_of("r", 12_000, 120, full_rows=9, full_batch_us=12_000 + 8 * 1_001)
    assert model.busy_us == pytest.approx((12_000 + 8 * 1_001) / 9)
    times = Forms.of([model], (1, 2, 3), hop_us=70, memory_bytes=1_000).times
    assert times.full_rows.tolist() == [9]
    for shape, stages in enumerate(times.stage_counts):
        assert times.busy_us[shape, 0].sum() == 12_000
        assert times.latency_us[shape, 0].sum() == 12_000 + 70 * (stages - 1)
        assert times.further_us[shape, 0].sum() == 1_001
        assert (times.further_us[shape, 0, :stages] >= 1_001 // stages).all()


def test_without_batches_a_further_row_is_a_batch_of_its_own() -> None:
    model = model_of("r", 12_000, 120, full_batch_us=600_000)
    assert (model.further_share, model.busy_us) == (0.0, 12_000)
    assert Forms.of([model], (1,), 0, 1_000).times.full_rows.tolist() == [1]


def test_a_row_of_a_batch_takes_no_more_than_one_alone() -> None:
    slow = model_of("r", 1_200, 120, full_rows=4, full_batch_us=8_000)
    assert (slow.further_share, slow.busy_us) == (1.0, 1_200)
    quick = model_of("r", 1_200, 120, full_rows=4, full_batch_us=400)
    assert (quick.further_share, quick.busy_us) == (0.0, 100)


@pytest.mark.parametrize(("full_rows", "full_batch_us"), [(0, 1_000), (8, 0)])
def test_impossible_batches_are_rejected(full_rows: int, full_batch_us: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a full batch of 'r' has"):
        Model("r", (1_000,), (100,), full_rows, full_batch_us)
