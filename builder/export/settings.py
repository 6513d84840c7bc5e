"""The settings that may differ from one export to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import CostModel

# Set by the export itself, so that it agrees with where the repository lies.
HOME_PARAMETER = "home"
_MOST_ROWS = 65_536
_MOST_INSTANCES = 1_024
_LONGEST_DELAY_US = 10_000_000


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Parameters reach a model as strings, through its configuration; the models say which ones they know.

    `home` is the way from the repository folder to the home. It is relative, so that both may be mounted anywhere
    together; where only the repository is, the environment variable HPLM_HOME says where the home lies.

    The `plugin` is a built deadline batcher. Where none is given and `takes_plugin` holds, rendering takes that of this
    release, and goes on without where that cannot be built. Mode `engine` lets `hplm_upper` choose its batches: Triton
    hands over all that waits in one call, without the plugin request by request. Mode `triton` leaves the batches to
    Triton: with the plugin, which needs the `cost_model` to end them before deadlines, or as Triton does it alone.
    `queue_delay_us` is how long Triton waits there for a batch to fill while nothing runs.

    With `stage_models` each stage of the upper layers is a Triton model, and they are chained in the ensemble; without,
    one model has all of them.
    """

    max_batch_size: int = 64
    lower_instances: int = 1
    device: Literal["cpu", "gpu"] = "cpu"
    gpus: tuple[int, ...] = ()
    home: str = ".."
    mode: Literal["engine", "triton"] = "engine"
    queue_delay_us: int = 1000
    plugin: Path | None = None
    takes_plugin: bool = True
    cost_model: CostModel | None = None
    stage_models: bool = False
    lower_parameters: Mapping[str, str] = field(default_factory=dict)
    upper_parameters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_bounds("max_batch_size", self.max_batch_size, 1, _MOST_ROWS)
        _check_bounds("lower_instances", self.lower_instances, 1, _MOST_INSTANCES)
        _check_bounds("queue_delay_us", self.queue_delay_us, 0, _LONGEST_DELAY_US)
        if self.device not in ("cpu", "gpu"):
            raise InvalidArgumentError(f"device is {self.device!r}; it can be 'cpu' or 'gpu'")
        if self.gpus and self.device != "gpu":
            raise InvalidArgumentError("GPUs are named, but the device is 'cpu'")
        if self.mode not in ("engine", "triton"):
            raise InvalidArgumentError(f"mode is {self.mode!r}; it can be 'engine' or 'triton'")
        if self.plugin is not None and not self.takes_plugin:
            raise InvalidArgumentError("a batching plugin is given, and none is to be taken along")
        for parameters in (self.lower_parameters, self.upper_parameters):
            _check_parameters(parameters)
        if self.mode == "triton" and self.stages > 1:
            raise InvalidArgumentError("in mode 'triton' one batch runs at a time, so layers are not cut in stages")
        if self.stage_models and self.stages == 1:
            raise InvalidArgumentError("one stage is one model; stages that are models are two or more: add --stages 2")

    @property
    def is_batched_by_triton(self) -> bool:
        """Whether Triton hands over several requests in one call."""
        return self.mode == "triton" or self.plugin is not None

    @property
    def stages(self) -> int:
        """Stages that the upper layers are cut into."""
        return int(self.upper_parameters.get("stages", "1"))


def _check_bounds(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgumentError(f"{name} must be {least:,} to {most:,}, not {value:,}")


def _check_parameters(parameters: Mapping[str, str]) -> None:
    if HOME_PARAMETER in parameters:
        raise InvalidArgumentError(f"the parameter {HOME_PARAMETER!r} is written by the export itself")
    for name, value in parameters.items():
        if not isinstance(value, str):
            raise InvalidArgumentError(f"parameter {name!r} is {value!r}; Triton carries strings only")
