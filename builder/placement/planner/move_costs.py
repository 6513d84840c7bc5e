"""What a change of placements costs while it is made: medians of `bench.drains` and `bench.moves` on two CPU cores."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from backends.errors import InvalidArgumentError


@dataclass(frozen=True)
class MoveCosts:
    """What each kind of move takes; for so long its group answers nothing.

    Attributes:
        reload_s: A group is to hold other roots: `hplm fleet apply` drains its server and starts it again.
        reshape_s: Devices form other groups: the same, with other servers.
        loaded_bytes_per_s: A root onto an engine: its weights are read and packed.
        hplm_s: An hPLM to another server: its adapters and the pages of its table are read there, once. So long one
            device does nothing else.
    """

    reload_s: float = 14.7
    reshape_s: float = 14.7
    loaded_bytes_per_s: float = 0.5e9
    hplm_s: float = 0.006

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not math.isfinite(value) or value < 0:
                raise InvalidArgumentError(f"{name} of a move is {value}; no move takes less than nothing")
        if not self.loaded_bytes_per_s:
            raise InvalidArgumentError("loaded_bytes_per_s of a move is 0, so no root would ever be loaded")

    def load_s(self, size_bytes: int) -> float:
        return size_bytes / self.loaded_bytes_per_s
