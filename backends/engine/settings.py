"""Settings of `hplm_upper` that an export fixes: device, precision, layout, threads, and what a batch may hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from backends.adapters.parts import MAX_WIDTH
from backends.engine.precision import Precision, precision_of
from backends.engine.stack import StackSettings
from backends.model_settings import ModelSettings
from backends.root.store import RootFolder
from backends.scheduling.cost_profile import Measured, device_name
from backends.scheduling.settings import Capacity


@dataclass(frozen=True)
class EngineSettings:
    """Settings of one process; `threads` is the number of compute threads."""

    stack: StackSettings
    capacity: Capacity
    threads: int

    @classmethod
    def from_model(cls, settings: ModelSettings, device: str) -> EngineSettings:
        """Read a model's settings. Call this before `set_num_threads`: PyTorch's own number is the default."""
        stack = StackSettings(
            device=device,
            dtype=settings.text("dtype", StackSettings.dtype),
            num_slots=settings.number("slots", StackSettings.num_slots),
            max_width=settings.number("max_width", MAX_WIDTH),
            layout=settings.text("layout", StackSettings.layout),
            stages=settings.number("stages", StackSettings.stages),
            stage=settings.number("stage", 0) if "stage" in settings.parameters else None,
            device_memory=settings.number("device_memory", 0) if "device_memory" in settings.parameters else None,
        )
        capacity = Capacity(
            max_rows=settings.number("max_rows", Capacity.max_rows),
            max_tokens=settings.number("max_tokens", Capacity.max_tokens),
            max_adapters=stack.num_slots - 1,
        )
        return cls(stack, capacity, settings.number("threads", torch.get_num_threads()))

    @property
    def parameters(self) -> dict[str, str]:
        """The settings as a model's configuration carries them."""
        return {
            "dtype": self.stack.dtype,
            "layout": self.stack.layout,
            "slots": str(self.stack.num_slots),
            "max_rows": str(self.capacity.max_rows),
            "max_tokens": str(self.capacity.max_tokens),
            "threads": str(self.threads),
            "stages": str(self.stack.stages),
            **({} if self.stack.stage is None else {"stage": str(self.stack.stage)}),
        }

    @property
    def stage_threads(self) -> int:
        """Threads that compute one batch; the stages have equal shares of all."""
        return max(1, self.threads // self.stack.stages)

    @property
    def precision(self) -> Precision:
        """What the layers compute in here; the device may lack what was exported."""
        return precision_of(self.stack.dtype, torch.device(self.stack.device))

    @property
    def dtype_in_force(self) -> str:
        """The name of its precision."""
        return self.precision.dtype

    def measured(self, root: RootFolder) -> Measured:
        """Return the conditions under which a cost model holds for this engine."""
        device = device_name(torch.device(self.stack.device))
        return Measured(root.fingerprint, device, self.dtype_in_force, self.stack.layout, self.stage_threads)
