"""Rows that ask an admission, and the costs of the engine that it speaks for."""

from __future__ import annotations

from dataclasses import dataclass

from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.order import FairOrder, Order
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.stack_key import StackKey

MODEL = CostModel(2000.0, 20.0, 50.0, 0.0, 30.0)
CAPACITY = Capacity(max_rows=16, max_tokens=1024, max_adapters=64)
MINI = StackKey("mini")


@dataclass(eq=False)
class Row:
    tenant: str
    num_tokens: int
    arrived_us: int
    deadline_us: int | None = None
    hplm_key: int = 1
    root: StackKey = MINI
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0
    kept: float = 1.0
    settles: bool = False
    leaves_at: float | None = None
    """Where it leaves if it is sure, for a row that may not settle."""

    @property
    def exit_depth(self) -> float:
        return self.least_depth if self.leaves_at is None else self.leaves_at

    def settle(self) -> bool:
        if self.settles or self.least_depth == 1.0:
            return False
        self.depth, self.settles = self.least_depth, True
        return True

    def unsettle(self, depth: float) -> None:
        self.depth, self.settles = depth, False


def admission_of(
    model: CostModel | LiveCosts = MODEL,
    settings: AdmissionSettings | None = None,
    capacity: Capacity = CAPACITY,
    order: Order | None = None,
) -> Admission[Row]:
    costs = model if isinstance(model, LiveCosts) else LiveCosts(model)
    admission: Admission[Row] = Admission(
        lambda _: costs, capacity, settings or AdmissionSettings(), order or FairOrder()
    )
    admission.serves(MINI)
    return admission


def indices_of(admission: Admission[Row], rows: list[Row]) -> list[int]:
    chosen = set(map(id, rows))
    return [index for index, row in enumerate(admission.waiting) if id(row) in chosen]


def run(admission: Admission[Row], rows: list[Row], now_us: int) -> BatchShape:
    """Take rows that wait, and begin to run them."""
    shape = BatchShape.of(admission.take_batch(indices_of(admission, rows), now_us))
    admission.batches.began(rows[0].root, shape, now_us)
    return shape
