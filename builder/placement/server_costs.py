"""What serving takes beside batches, as a calibration measured it: a file that is written once, and then only read.

Usage:
    costs.write(path)
    costs = ServerCosts.read(path)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.fields import Fields, read_fields
from backends.scheduling.cost_model import CostModel
from backends.storage import write_json

FORMAT_VERSION = 1
_MOST = 1e9


@dataclass(frozen=True)
class Linear:
    """A time that grows with the number of rows."""

    constant_us: float = 0.0
    per_row_us: float = 0.0

    def of(self, rows: int) -> float:
        return self.constant_us + self.per_row_us * rows

    @classmethod
    def read(cls, stored: Fields) -> Linear:
        return cls(stored.number("constant_us", 0.0, _MOST), stored.number("per_row_us", 0.0, _MOST))


@dataclass(frozen=True)
class CoreCosts:
    """How far serving slows batches down.

    Attributes:
        slowness: What batches take without any requests, over the cost model.
        per_offered_us: By which a batch is longer for each request that is sent meanwhile.
        per_received_us: By which it is longer for each row that comes to the engine meanwhile.
        most_stretch: No batch is longer by more than this factor: computing keeps its fair part of the cores.
    """

    slowness: float = 1.0
    per_offered_us: float = 0.0
    per_received_us: float = 0.0
    most_stretch: float = 1.0

    @property
    def is_slowing(self) -> bool:
        return self.most_stretch > 1.0 and max(self.per_offered_us, self.per_received_us) > 0

    def taken_us(self, offered: int, received: int) -> float:
        return self.per_offered_us * offered + self.per_received_us * received

    @classmethod
    def read(cls, stored: Fields) -> CoreCosts:
        return cls(
            stored.positive("slowness"),
            stored.number("per_offered_us", 0.0, _MOST),
            stored.number("per_received_us", 0.0, _MOST),
            stored.number("most_stretch", 1.0, _MOST),
        )


@dataclass(frozen=True)
class FrontCosts:
    """The way of a row to the engine.

    Attributes:
        reach_us: From sending a request until the lower model sees it.
        encoding: Of rows that are encoded together.
        hop_us: From the lower model to the engine.
        workers: Processes of the lower model.
        batch_rows: Rows that are encoded together, at most.
    """

    reach_us: float = 0.0
    encoding: Linear = Linear()
    hop_us: float = 0.0
    workers: int = 1
    batch_rows: int = 64

    @classmethod
    def read(cls, stored: Fields) -> FrontCosts:
        return cls(
            stored.number("reach_us", 0.0, _MOST),
            Linear.read(stored.part("encoding")),
            stored.number("hop_us", 0.0, _MOST),
            stored.whole("workers", 1, 1_024),
            stored.whole("batch_rows", 1, 1 << 20),
        )


@dataclass(frozen=True)
class ServerCosts:
    """One server, with all that stands around its batches.

    Attributes:
        model: What batches take, as the server was told; `cores.slowness` corrects it.
        cores: What requests take from the cores that compute.
        front: What stands before the engine.
        staging: Of a batch that was chosen.
        answering: Of a batch that has run.
        scatter: What batches took, over what they should by all this, one after the other: neighbours are alike.
        measured: Says on what and how; nothing is computed from it.
    """

    model: CostModel
    cores: CoreCosts = CoreCosts()
    front: FrontCosts = FrontCosts()
    staging: Linear = Linear()
    answering: Linear = Linear()
    scatter: tuple[float, ...] = (1.0,)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.scatter or min(self.scatter) <= 0:
            raise InvalidArgumentError("a server's batches scatter around 1; give at least one number above 0")

    def write(self, path: Path) -> None:
        scatter = [[each] for each in self.scatter]
        write_json(path, {"format_version": FORMAT_VERSION, **asdict(self), "scatter": scatter})

    @classmethod
    def read(cls, path: Path) -> ServerCosts:
        """Read a file of `write`.

        Raises:
            FileError: It is missing or damaged, or of a newer format.
        """
        stored = read_fields(path, FORMAT_VERSION)
        return cls(
            CostModel.read(stored.part("model")),
            CoreCosts.read(stored.part("cores")),
            FrontCosts.read(stored.part("front")),
            Linear.read(stored.part("staging")),
            Linear.read(stored.part("answering")),
            _scatter_of(stored),
            stored.mapping("measured"),
        )


def _scatter_of(stored: Fields) -> tuple[float, ...]:
    """Read numbers above 0, each written as a list of one."""
    scatter = tuple(each for (each,) in stored.numbers("scatter", 1))
    if not scatter or min(scatter) <= 0:
        raise CorruptFileError(f"{stored.where}: scatter is not one number above 0 or more")
    return scatter
