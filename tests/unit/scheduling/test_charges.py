"""What tenants pay for: all that their batches take, by whichever term of the cost model."""

from __future__ import annotations

import pytest

from admitted_rows import MINI, Row, admission_of
from backends.scheduling.cost_model import CostModel
from backends.scheduling.order import FairOrder, Order, UtilityOrder
from backends.scheduling.settings import AdmissionSettings

BATCH_US = 45_000.0
BY_BATCH = CostModel(BATCH_US, 0.0, 0.0, 0.0, 0.0)
BY_ADAPTER = CostModel(0.0, 0.0, 0.0, 0.0, BATCH_US)
"""Batches of one hPLM each do not tell these two apart, so a fit on them may end with either."""


@pytest.mark.parametrize("model", [BY_BATCH, BY_ADAPTER])
@pytest.mark.parametrize("order", [FairOrder(), UtilityOrder(0.5, 0.5)])
def test_an_overload_of_one_tenant_is_behind_the_others(model: CostModel, order: Order) -> None:
    settings = AdmissionSettings(max_waiting=10_000, tenant_quota=5_000)
    admission = admission_of(model, settings, order=order)
    assert admission.admit([Row("other", 20, 0, hplm_key=2)], 0) is None  # who is alone has no share to exceed
    for now_us in range(900):
        assert admission.admit([Row("one", 20, now_us, hplm_key=1)], now_us) is None
    arriving = Row("other", 20, 900, deadline_us=5_000_000, hplm_key=2)
    assert admission.finish_in_us(arriving, 900) <= 10 * BATCH_US


def test_what_a_row_delays_is_the_same_by_either_term() -> None:
    by_batch, by_adapter = (admission_of(model).work_us(MINI, [20])[0] for model in (BY_BATCH, BY_ADAPTER))
    assert by_adapter == pytest.approx(by_batch)
