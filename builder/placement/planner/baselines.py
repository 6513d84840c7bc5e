"""What a plan is compared with: placements that operators make without a search, and AlpaServe's own baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from builder.placement.planner.frames import by_size, single_frames
from builder.placement.planner.problem import Problem
from builder.placement.planner.room import Room
from builder.placement.planner.selecting import Selector
from builder.placement.planner.selection import Frame, Selection

_ROUND_ROBIN_STAGES = 4


class Baseline(StrEnum):
    DEDICATED = "dedicated"
    EVERYWHERE = "all everywhere"
    REPLICATION = "selective replication"
    ROUND_ROBIN = "round robin"


Baselines = Mapping[Baseline, Selection | None]


def baselines(problem: Problem) -> Baselines:
    """Return the placements of each kind; None for one that the memory does not allow."""
    return {
        Baseline.DEDICATED: dedicated(problem),
        Baseline.EVERYWHERE: everywhere(problem) if fits_everywhere(problem) else None,
        Baseline.REPLICATION: replicated(problem),
        Baseline.ROUND_ROBIN: round_robin(problem),
    }


def fits_everywhere(problem: Problem) -> bool:
    needed = sum(model.size_bytes for model in problem.models)
    return needed <= min(device.memory_bytes for device in problem.devices)


def everywhere(problem: Problem) -> Selection:
    """Put every model on every device, none of them in stages."""
    frames = single_frames(problem)
    return Selection(frames, (frozenset(range(len(problem.models))),) * len(frames))


def replicated(problem: Problem) -> Selection:
    """AlpaServe's strongest baseline: its own search, but every device is a group and nothing is cut in stages."""
    selector = Selector(problem, range(len(problem.models)), problem.traffic, covers=False)
    return selector.fast(single_frames(problem)).selection


def round_robin(problem: Problem) -> Selection:
    """Deal the models in turn to groups of up to four stages, again and again while there is room."""
    most = min(_ROUND_ROBIN_STAGES, len(problem.devices))
    stages = max(count for count in problem.stage_counts if count <= most)
    frames = by_size(problem, range(len(problem.devices)), stages)
    room, state, turn, placed = Room(problem, frames), Selection.empty(frames), 0, True
    while placed:
        placed = False
        for model in range(len(problem.models)):
            fits = room.fits(model).tolist()
            groups = [(turn + step) % len(frames) for step in range(len(frames))]
            group = next((each for each in groups if fits[each] and model not in state.held[each]), None)
            if group is not None:
                state, turn, placed = state.plus(model, group), group + 1, True
                room.take(model, group)
    return state


def dedicated(problem: Problem) -> Selection:
    """Give every model devices of its own: as few as hold it, and more of them to those that keep most busy."""
    left, groups = list(range(len(problem.devices))), _Dedicated(problem)
    for model in sorted(range(len(problem.models)), key=lambda each: (-problem.demand[each], each)):
        left = groups.give(model, left)
    while left:
        by_load = sorted(groups.replicas, key=lambda each: (-problem.demand[each] / groups.replicas[each], each))
        before = len(left)
        for model in by_load:
            left = groups.give(model, left)
            if len(left) < before:
                break
        if len(left) == before:
            break
    return Selection(tuple(groups.frames), tuple(groups.held))


class _Dedicated:
    """Groups of one model each, while they are made."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.frames: list[Frame] = []
        self.held: list[frozenset[int]] = []
        self.replicas: dict[int, int] = {}

    def give(self, model: int, left: Sequence[int]) -> list[int]:
        """Give a model the smallest group that holds it; return the devices that are left."""
        for size in self._problem.stage_counts:
            for frame in by_size(self._problem, left, size):
                if frame.num_stages == size and Room(self._problem, [frame]).fits(model)[0]:
                    self.frames.append(frame)
                    self.held.append(frozenset({model}))
                    self.replicas[model] = self.replicas.get(model, 0) + 1
                    return [place for place in left if place not in frame.devices]
        return list(left)
