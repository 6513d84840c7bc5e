"""What the planner is given: models, devices and traffic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from backends.errors import InvalidArgumentError
from builder.placement.planner.forms import Forms
from builder.placement.planner.group import Device
from builder.placement.planner.model import Model
from builder.placement.planner.traffic import Traffic

STAGE_COUNTS = (1, 2, 3, 4, 6, 8)
NO_STAGES = (1,)


@dataclass(frozen=True, eq=False)
class Problem:
    """Models to place on devices, for a traffic whose models are places in `models`.

    Attributes:
        hop_us: What handing on to the next stage takes.
        stage_counts: The numbers of stages that a group may have, ascending from 1.
    """

    models: tuple[Model, ...]
    devices: tuple[Device, ...]
    traffic: Traffic
    hop_us: int = 0
    stage_counts: tuple[int, ...] = STAGE_COUNTS

    def __post_init__(self) -> None:
        if not self.devices:
            raise InvalidArgumentError("there is no device to place anything on")
        if not self.models:
            raise InvalidArgumentError("there is no root to place")
        if self.stage_counts[:1] != (1,) or list(self.stage_counts) != sorted(set(self.stage_counts)):
            raise InvalidArgumentError(f"numbers of stages ascend from 1; {self.stage_counts} do not")
        if not len(self.traffic):
            raise InvalidArgumentError("the traffic has no requests, so nothing says what is needed where")
        if int(self.traffic.models.max()) >= len(self.models) or int(self.traffic.models.min()) < 0:
            raise InvalidArgumentError("the traffic has requests for models that are not to be placed")

    @cached_property
    def forms(self) -> Forms:
        memory = max(device.memory_bytes for device in self.devices)
        return Forms.of(self.models, self.stage_counts, self.hop_us, memory)

    @cached_property
    def demand(self) -> tuple[float, ...]:
        """How many devices each model would keep busy."""
        counts = self.traffic.counts(len(self.models)).tolist()
        duration_us = max(1, self.traffic.duration_us)
        return tuple(count * model.busy_us / duration_us for count, model in zip(counts, self.models, strict=True))
