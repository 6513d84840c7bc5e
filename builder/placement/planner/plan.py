"""A placement as plain data, with what it was made for and why it is so; checked as it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from backends.errors import FingerprintMismatchError, InvalidArgumentError, NotFoundError, shown
from builder.placement.planner.change import Change
from builder.placement.planner.group import Device, Group


@dataclass(frozen=True)
class Alternative:
    """A way to place, and what it comes to by the simulation; the first of a plan is the plan itself.

    Attributes:
        attainment: Share of the requests that are answered in time; None where it does not fit.
        held_out: The same of requests that no search has seen; None where none were kept apart.
        mean_ms: Mean latency of what is answered; None where nothing is.
        over_load: `held_out` at multiples of the load, in pairs; none where it was not asked for.
    """

    name: str
    attainment: float | None
    held_out: float | None = None
    mean_ms: float | None = None
    over_load: tuple[tuple[float, float], ...] = ()


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
            InvalidArgumentError: They differ; the message has both.
        """
        if {*self.devices} != {*devices}:
            raise InvalidArgumentError(
                f"the plan has {_counted(self.devices)}, and --devices less --reserve {_counted(devices)}; "
                "'hplm place' without --from places anew"
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


def _counted(devices: Iterable[Device]) -> str:
    """Describe devices by their hosts and sizes."""
    counts = Counter((device.host, device.memory_bytes) for device in devices)
    return ", ".join(
        f"{count:,} {'device' if count == 1 else 'devices'} of {memory_bytes:,} bytes on {host}"
        for (host, memory_bytes), count in counts.items()
    )
