"""A placement while it is searched for: groups of devices, and which models stand on which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.placement.planner.group_simulator import PlacedGroup


@dataclass(frozen=True)
class Frame:
    """A group without models: its devices, as places in the problem's, one for each stage."""

    devices: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        return len(self.devices)


@dataclass(frozen=True)
class Selection:
    """Which models stand on which group."""

    frames: tuple[Frame, ...]
    held: tuple[frozenset[int], ...]

    @classmethod
    def empty(cls, frames: Sequence[Frame]) -> Selection:
        return cls(tuple(frames), (frozenset(),) * len(frames))

    @property
    def groups(self) -> list[PlacedGroup]:
        return [PlacedGroup(frame.num_stages, held) for frame, held in zip(self.frames, self.held, strict=True)]

    @property
    def num_replicas(self) -> int:
        return sum(map(len, self.held))

    @property
    def models(self) -> frozenset[int]:
        return frozenset(model for held in self.held for model in held)

    def plus(self, model: int, group: int) -> Selection:
        held = list(self.held)
        held[group] |= {model}
        return Selection(self.frames, tuple(held))

    def on(self, devices: Mapping[int, int]) -> Selection:
        """Return the same on other devices."""
        frames = tuple(Frame(tuple(devices[place] for place in frame.devices)) for frame in self.frames)
        return Selection(frames, self.held)

    def beside(self, other: Selection) -> Selection:
        """Join selections of different devices."""
        return Selection(self.frames + other.frames, self.held + other.held)
