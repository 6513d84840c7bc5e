"""Rows that ask an admission, and the costs of the engine that it speaks for."""

from __future__ import annotations

from dataclasses import dataclass

from backends.scheduling.admission import Admission
from backends.scheduling.admission_settings import AdmissionSettings
from backends.scheduling.cost_model import CostModel
from backends.scheduling.live_costs import LiveCosts
from backends.scheduling.order import FairOrder, Order
from backends.scheduling.policy import Capacity

MODEL = CostModel(2000.0, 20.0, 50.0, 0.0, 30.0)
CAPACITY = Capacity(max_rows=16, max_tokens=1024, max_adapters=64)


@dataclass(eq=False)
class Row:
    tenant: str
    num_tokens: int
    arrives_us: int
    deadline_us: int | None = None
    hplm_key: int = 1
    root: str = "mini"


def admission_of(
    model: CostModel | LiveCosts = MODEL,
    settings: AdmissionSettings | None = None,
    capacity: Capacity = CAPACITY,
    order: Order = FairOrder(),
) -> Admission:
    costs = model if isinstance(model, LiveCosts) else LiveCosts(model)
    admission = Admission(lambda root: costs, capacity, settings or AdmissionSettings(), order)
    admission.serves("mini")
    return admission
