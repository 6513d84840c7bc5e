"""Devices, and the groups of them with the stacks that they hold; checked as they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.errors import InvalidArgumentError, shown
from backends.stack_key import FULL

MOST_STAGES = 64


@dataclass(frozen=True)
class Device:
    """One accelerator, or the part of one that a server may use.

    Attributes:
        memory_bytes: What stacks and their adapter slots may take.
        host: Devices of one host may form a group.
    """

    name: str
    memory_bytes: int
    host: str = "localhost"

    def __post_init__(self) -> None:
        if not self.name or not self.host:
            raise InvalidArgumentError("a device and its host need names")
        if self.memory_bytes <= 0:
            raise InvalidArgumentError(f"device {shown(self.name)} has {self.memory_bytes} bytes; it needs more than 0")


@dataclass(frozen=True)
class Shape:
    """How a group's devices share the work: `stages` one after the other, each computed by `ways` devices at once."""

    stages: int = 1
    ways: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.stages <= MOST_STAGES or not 1 <= self.ways <= MOST_STAGES:
            raise InvalidArgumentError(f"a shape has 1 to {MOST_STAGES} stages and ways, not {self}")

    @property
    def num_devices(self) -> int:
        return self.stages * self.ways

    def __str__(self) -> str:
        return f"{self.stages} x {self.ways}"


@dataclass(frozen=True)
class Stack:
    """A root's upper half at one level, or a stage of it.

    Attributes:
        first_half: The first half layer that it runs: attention and feed-forward network are a half each.
        end_half: The half layer before which it ends.
        size_bytes: Its weights and adapter slots, of one device of its group.
    """

    root: str
    first_half: int
    end_half: int
    size_bytes: int
    level: str = FULL
    stage: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.first_half < self.end_half:
            raise InvalidArgumentError(
                f"stage {self.stage} of {shown(self.root)} runs half layers {self.first_half} to {self.end_half}, "
                "which are none; there are more stages than half layers"
            )
        if self.size_bytes < 0:
            raise InvalidArgumentError(f"stage {self.stage} of {shown(self.root)} has {self.size_bytes} bytes")

    @property
    def name(self) -> str:
        """The root, and its level unless that is all layers; the stages of a stack have one name."""
        return level_name(self.root, self.level)


def level_name(root: str, level: str) -> str:
    return root if level == FULL else f"{root}/{level}"


@dataclass(frozen=True)
class Group:
    """Devices that serve together; a request for a root goes to one group that holds it.

    Attributes:
        devices: Their names: the `ways` devices of stage 0 first.
        stacks: For each root that it holds one for each stage.
    """

    name: str
    devices: tuple[str, ...]
    shape: Shape
    stacks: tuple[Stack, ...] = ()

    def __post_init__(self) -> None:
        if len(self.devices) != self.shape.num_devices:
            raise InvalidArgumentError(
                f"group {shown(self.name)} has {len(self.devices)} devices, and its shape {self.shape} takes "
                f"{self.shape.num_devices}"
            )
        for (root, level), stages in self._stages().items():
            self._check_stages(level_name(root, level), stages)

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stack.root for stack in self.stacks))

    def stage_bytes(self, stage: int) -> int:
        """Return what the stacks of a stage take on each of its devices."""
        return sum(stack.size_bytes for stack in self.stacks if stack.stage == stage)

    def devices_of(self, stage: int) -> tuple[str, ...]:
        return self.devices[stage * self.shape.ways : (stage + 1) * self.shape.ways]

    def _stages(self) -> Mapping[tuple[str, str], list[Stack]]:
        stages: dict[tuple[str, str], list[Stack]] = {}
        for stack in self.stacks:
            stages.setdefault((stack.root, stack.level), []).append(stack)
        return stages

    def _check_stages(self, what: str, stages: list[Stack]) -> None:
        """Require each stage once, in order, and each to begin where the one before it ends."""
        ends = [0, *(stack.end_half for stack in stages[:-1])]
        in_order = [stack.stage for stack in stages] == [*range(self.shape.stages)]
        if not in_order or [stack.first_half for stack in stages] != ends:
            raise InvalidArgumentError(
                f"the stages of {shown(what)} on group {shown(self.name)} are not the {self.shape.stages} of its "
                "shape, one after the other"
            )
