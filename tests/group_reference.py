"""A slow group simulation, event by event: no clocks, only what waits, runs and ends; it looks ahead by playing on.

A copy of a group that is played to its end says when it would be free, and when one more request would be answered.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Times = tuple[int, ...]
Request = tuple[int, int, int]
"""Arrival, model and deadline."""


@dataclass
class Batch:
    """Requests of one model, and what it takes: of one request, and for each further one."""

    name: int
    model: int
    requests: list[int]
    latency_us: Times
    busy_us: Times
    further_us: Times

    def more_us(self, stage: int) -> int:
        return (len(self.requests) - 1) * self.further_us[stage]


@dataclass
class Group:
    """Batches pass the stages in the order in which they came to the group."""

    num_stages: int
    requests: Sequence[Request]
    now_us: int = 0
    events: list[tuple[int, int, str, int]] = field(default_factory=list)
    waiting: list[list[Batch]] = field(default_factory=list)
    arrived: dict[tuple[int, int], bool] = field(default_factory=dict)
    is_busy: list[bool] = field(default_factory=list)
    running: dict[int, Batch] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    busy_until_us: int = 0
    used_us: int = 0
    num_dropped: int = 0
    drops: bool = True
    """Whether requests that would be late are dropped when their batch begins; not where it looks ahead."""

    def __post_init__(self) -> None:
        self.waiting = [[] for _ in range(self.num_stages)]
        self.is_busy = [False] * self.num_stages

    def add(self, batch: Batch) -> None:
        for waiting in self.waiting:
            waiting.append(batch)
        self.arrived[batch.name, 0] = True
        self._start_what_can()

    def joinable(self, model: int, full_rows: int) -> Batch | None:
        """Return the last batch of a model that has not begun, if it has room."""
        last = next((batch for batch in reversed(self.waiting[0]) if batch.model == model), None)
        return last if last is not None and len(last.requests) < full_rows else None

    def play_until(self, end_us: int) -> None:
        while self.events and self.events[0][0] <= end_us:
            self.now_us, stage, what, name = heapq.heappop(self.events)
            if what == "free":
                self.is_busy[stage] = False
                if stage == self.num_stages - 1:
                    self.busy_until_us = self.now_us
            elif stage == self.num_stages - 1:
                self.finished |= dict.fromkeys(self.running[name].requests, self.now_us)
            else:
                self.arrived[name, stage + 1] = True
            self._start_what_can()
        self.now_us = max(self.now_us, end_us)

    def _start_what_can(self) -> None:
        for stage, waiting in enumerate(self.waiting):
            while waiting and not self.is_busy[stage] and self.arrived.get((waiting[0].name, stage)):
                batch = waiting[0]
                if stage == 0 and self.drops:
                    self._drop_late(batch)
                    if not batch.requests:
                        for each in self.waiting:
                            each.remove(batch)
                        continue
                waiting.pop(0)
                self._start(batch, stage)

    def _start(self, batch: Batch, stage: int) -> None:
        self.is_busy[stage] = True
        self.running[batch.name] = batch
        begun_us = self.now_us + batch.more_us(stage)
        self.used_us += begun_us - self.now_us + batch.busy_us[stage]
        heapq.heappush(self.events, (begun_us + batch.busy_us[stage], stage, "free", batch.name))
        heapq.heappush(self.events, (begun_us + batch.latency_us[stage], stage, "left", batch.name))

    def _drop_late(self, batch: Batch) -> None:
        """Drop the first request of a batch that would be late if it began now, until none would be."""
        while batch.requests:
            ahead = self._copy()
            ahead.drops = False
            ahead._start_what_can()
            ended = ahead.played_out().finished
            late = next((each for each in batch.requests if ended[each] > self.requests[each][2]), None)
            if late is None:
                return
            batch.requests.remove(late)
            self.num_dropped += 1

    def ended(self) -> Group:
        """Return what becomes of it, if nothing more comes."""
        group = self._copy()
        while group.events:
            group.play_until(group.events[0][0])
        return group

    def played_out(self) -> Group:
        """Return the same if nothing is dropped."""
        group = self._copy()
        group.drops = False
        return group.ended()

    def with_batch(self, batch: Batch) -> Group:
        group = self._copy()
        group.add(copy.deepcopy(batch))
        return group

    def with_joined(self, name: int, request: int) -> Group:
        group = self._copy()
        next(batch for batch in group.waiting[0] if batch.name == name).requests.append(request)
        return group

    def _copy(self) -> Group:
        return copy.deepcopy(self)

    @property
    def free_us(self) -> int:
        """When its last stage is free, if nothing more comes; now, if it is free already."""
        return max(self.now_us, self.played_out().busy_until_us)


@dataclass(frozen=True)
class Outcome:
    """When each request ends that is not rejected, how long each group's stages work, and the sizes of batches."""

    ends_us: dict[int, int]
    used_us: list[int]
    sizes: list[int]
    num_dropped: int


def play(
    requests: Sequence[Request],
    stages_of: Sequence[int],
    models_of: Sequence[frozenset[int]],
    latency_us: Mapping[tuple[int, int], Times],
    busy_us: Mapping[tuple[int, int], Times],
    further_us: Mapping[tuple[int, int], Times],
    full_rows: Sequence[int],
) -> Outcome:
    """Play requests; times are by (stages, model)."""
    groups = [Group(stages, requests) for stages in stages_of]
    for number, (arrived_us, model, _) in enumerate(requests):
        for group in groups:
            group.play_until(arrived_us)
        holders = [number for number, models in enumerate(models_of) if model in models]
        if not holders:
            continue
        chosen = min(holders, key=lambda holder: groups[holder].free_us)
        key = groups[chosen].num_stages, model
        batch = Batch(number, model, [number], latency_us[key], busy_us[key], further_us[key])
        groups[chosen] = accepting(groups[chosen], batch, full_rows[model]) or groups[chosen]
    ended = [group.ended() for group in groups]
    return Outcome(
        {request: end for group in ended for request, end in group.finished.items()},
        [group.used_us for group in ended],
        [len(batch.requests) for group in ended for batch in group.running.values()],
        sum(group.num_dropped for group in ended),
    )


def accepting(group: Group, batch: Batch, full_rows: int) -> Group | None:
    """Return the group with a request, in a batch that waits or in its own; None where it would be late."""
    other = group.joinable(batch.model, full_rows)
    if other is not None:
        joined = group.with_joined(other.name, batch.name)
        if joined.played_out().finished[batch.name] <= group.requests[batch.name][2]:
            return joined
    ahead = group._copy()
    ahead.drops = False
    if ahead.with_batch(batch).played_out().finished[batch.name] <= group.requests[batch.name][2]:
        return group.with_batch(batch)
    return None
