"""A slow group simulation, event by event: no clocks, only what waits, runs and ends; it looks ahead by playing on.

A copy of a group that is played to its end says when it would be free, and when one more request would be answered.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Item:
    request: int
    latency_us: tuple[int, ...]
    busy_us: tuple[int, ...]


@dataclass
class Group:
    """Items pass the stages in the order in which they came to the group."""

    num_stages: int
    now_us: int = 0
    events: list[tuple[int, int, str, int]] = field(default_factory=list)
    waiting: list[list[Item]] = field(default_factory=list)
    arrived: dict[tuple[int, int], bool] = field(default_factory=dict)
    is_busy: list[bool] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    busy_until_us: int = 0

    def __post_init__(self) -> None:
        self.waiting = [[] for _ in range(self.num_stages)]
        self.is_busy = [False] * self.num_stages

    def add(self, item: Item) -> None:
        for waiting in self.waiting:
            waiting.append(item)
        self.arrived[item.request, 0] = True
        self._start_what_can()

    def play_until(self, end_us: int) -> None:
        while self.events and self.events[0][0] <= end_us:
            self.now_us, stage, what, request = heapq.heappop(self.events)
            if what == "free":
                self.is_busy[stage] = False
                if stage == self.num_stages - 1:
                    self.busy_until_us = self.now_us
            elif stage == self.num_stages - 1:
                self.finished[request] = self.now_us
            else:
                self.arrived[request, stage + 1] = True
            self._start_what_can()
        self.now_us = max(self.now_us, end_us)

    def _start_what_can(self) -> None:
        for stage, waiting in enumerate(self.waiting):
            if waiting and not self.is_busy[stage] and self.arrived.get((waiting[0].request, stage)):
                item = waiting.pop(0)
                self.is_busy[stage] = True
                heapq.heappush(self.events, (self.now_us + item.busy_us[stage], stage, "free", item.request))
                heapq.heappush(self.events, (self.now_us + item.latency_us[stage], stage, "left", item.request))

    def played_out(self, item: Item | None = None) -> Group:
        group = copy.deepcopy(self)
        if item is not None:
            group.add(item)
        while group.events:
            group.play_until(group.events[0][0])
        return group

    @property
    def free_us(self) -> int:
        """When its last stage is free, if nothing more comes; now, if it is free already."""
        return max(self.now_us, self.played_out().busy_until_us)


def play(
    requests: Sequence[tuple[int, int, int]],
    stages_of: Sequence[int],
    models_of: Sequence[frozenset[int]],
    latency_us: Mapping[tuple[int, int], tuple[int, ...]],
    busy_us: Mapping[tuple[int, int], tuple[int, ...]],
) -> dict[int, int]:
    """Return when each answered request ends. Requests are (arrival, model, deadline), times by (stages, model)."""
    groups = [Group(stages) for stages in stages_of]
    for number, (arrived_us, model, deadline_us) in enumerate(requests):
        for group in groups:
            group.play_until(arrived_us)
        holders = [number for number, models in enumerate(models_of) if model in models]
        if not holders:
            continue
        chosen = groups[min(holders, key=lambda holder: groups[holder].free_us)]
        item = Item(number, latency_us[chosen.num_stages, model], busy_us[chosen.num_stages, model])
        if chosen.played_out(item).finished[number] <= deadline_us:
            chosen.add(item)
    return {request: end for group in groups for request, end in group.played_out().finished.items()}
