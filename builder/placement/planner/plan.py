"""A placement as plain data: devices, and the groups of them with the stacks that they hold; checked as it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.errors import FingerprintMismatchError, InvalidArgumentError, NotFoundError, shown
from backends.stack_key import FULL

if TYPE_CHECKING:
    from builder.placement.planner.change import Change

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


@dataclass(frozen=True)
class Alternative:
    """A way to place, and what it comes to by the simulation; the first of a plan is the plan itself.

    Attributes:
        attainment: Share of the requests that are answered in time; None where it does not fit.
        held_out: The same of requests that no search has seen; None where none were kept apart.
        mean_ms: Mean latency of what is answered; None where nothing is.
    """

    name: str
    attainment: float | None
    held_out: float | None = None
    mean_ms: float | None = None


@dataclass(frozen=True)
class Plan:
    """A placement, what it was made for, and why it is so.

    Attributes:
        problem: Checksum of the devices, roots and traffic that it was made for.
        roots: Fingerprints of the roots that it places.
        verdict: The plan in a line.
        decisions: Why, a line each.
        alternatives: The plan itself, then what it was compared with.
        change: How the placement that was there before becomes this one; None where none was named.
    """

    problem: str
    devices: tuple[Device, ...]
    groups: tuple[Group, ...]
    roots: Mapping[str, str]
    verdict: str
    decisions: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    seed: int
    change: Change | None = None

    def __post_init__(self) -> None:
        _require_once("device", (device.name for device in self.devices))
        _require_once("group", (group.name for group in self.groups))
        known = {device.name: device for device in self.devices}
        of_steps = [] if self.change is None else [group for step in self.change.steps for group in step.groups]
        for group in (*self.groups, *of_steps):
            _check_devices(group, known)
            if strange := set(group.roots) - set(self.roots):
                raise InvalidArgumentError(f"group {shown(group.name)} holds an unknown root, {shown(min(strange))}")
        _require_once("device in groups", (name for group in self.groups for name in group.devices))

    def require_devices(self, devices: Collection[Device]) -> None:
        """Reject other devices than those of the plan.

        Raises:
            InvalidArgumentError: They differ; the message names the first difference.
        """
        own, others = set(self.devices), set(devices)
        if own != others:
            device = min(own ^ others, key=lambda each: each.name)
            where = "the placement has it, and --devices has not" if device in own else "the placement does not have it"
            raise InvalidArgumentError(
                f"the placement is for other devices: {shown(device.name)} on host {shown(device.host)} with "
                f"{device.memory_bytes:,} bytes: {where}; 'hplm place' without --from places anew"
            )

    def groups_of(self, root: str) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if root in group.roots)

    def check_home(self, fingerprints: Mapping[str, str]) -> None:
        """Reject the plan for a home whose roots, name to fingerprint, are not those that it places.

        Raises:
            NotFoundError: A root is not there.
            FingerprintMismatchError: A root was made anew, or is another home's of the same name.
        """
        for root, fingerprint in self.roots.items():
            if root not in fingerprints:
                raise NotFoundError(f"the placement places root {shown(root)}, which this home does not have")
            if fingerprints[root] != fingerprint:
                raise FingerprintMismatchError(
                    f"the placement was made for another root {shown(root)} than this home's; run 'hplm place' again"
                )


def _check_devices(group: Group, known: Mapping[str, Device]) -> None:
    if strange := [name for name in group.devices if name not in known]:
        raise InvalidArgumentError(f"group {shown(group.name)} has an unknown device, {shown(strange[0])}")
    if len({known[name].host for name in group.devices}) > 1:
        raise InvalidArgumentError(f"the devices of group {shown(group.name)} are of several hosts")
    for stage in range(group.shape.stages):
        taken = group.stage_bytes(stage)
        for name in group.devices_of(stage):
            if taken > known[name].memory_bytes:
                raise InvalidArgumentError(
                    f"the stacks of group {shown(group.name)} take {taken:,} bytes of device {shown(name)}, "
                    f"which has {known[name].memory_bytes:,}"
                )


def _require_once(what: str, names: Iterable[str]) -> None:
    if doubled := _doubled([*names]):
        raise InvalidArgumentError(f"{what} {shown(doubled)} is there twice")


def _doubled(names: Collection[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
