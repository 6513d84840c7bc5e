"""Which models go on which groups, the groups being fixed: AlpaServe's Algorithm 1, and its fast form.

While a model with traffic stands nowhere, only such models are placed, unless a bucket is to leave out what does not
pay: a request for a model that stands nowhere counts as late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from builder.placement.planner.group_simulator import GroupSimulator, Played
from builder.placement.planner.problem import Problem
from builder.placement.planner.room import Room
from builder.placement.planner.selection import Frame, Selection
from builder.placement.planner.traffic import Int64, Traffic

BEAM_WIDTH = 3
_MOST_SIMULATIONS = 200
"""Of one fast search; where more replicas fit, several are placed after each."""

Score = tuple[int, float, float, int]


@dataclass(frozen=True, eq=False)
class Selected:
    """A selection, and what it makes of the traffic that it was made for."""

    selection: Selection
    played: Played
    num_missing: int
    """Models with traffic that stand nowhere."""

    @property
    def score(self) -> Score:
        """Models that stand nowhere count before all else; of equals the one with more replicas is the safer."""
        return (-self.num_missing, *self.played.score, self.selection.num_replicas)


class Selector:
    """Fills groups with some of a problem's models, for the requests that these have in a traffic.

    Args:
        covers: Whether every model with traffic is to stand somewhere before any has a second replica.
    """

    def __init__(self, problem: Problem, models: Sequence[int], traffic: Traffic, covers: bool = True) -> None:
        self._problem, self._models, self._covers = problem, tuple(models), covers
        own = traffic if len(models) == len(problem.models) else traffic.of(models)
        self._simulator = GroupSimulator(own, problem.forms.times)
        self._count = len(problem.models)
        counts = own.counts(self._count)
        self._asked = frozenset(model for model in models if counts[model])
        duration_us = max(1, own.duration_us)
        self._work = np.array([each.busy_us for each in problem.models]) / duration_us
        self._work_alone = np.array([each.alone_us for each in problem.models]) / duration_us

    def judged(self, selection: Selection) -> Selected:
        missing = len(self._asked - selection.models) if self._covers else 0
        return Selected(selection, self._simulator.play(selection.groups), missing)

    def fast(self, frames: Sequence[Frame]) -> Selected:
        """Put the model with the most unserved requests on the least used group with room for it, and repeat."""
        room, state = Room(self._problem, frames), Selection.empty(frames)
        best = last = self.judged(state)
        at_once = 1 + self._most_replicas(frames) // _MOST_SIMULATIONS
        while True:
            unserved, used = last.played.unserved(self._count), last.played.used.copy()
            placed = False
            for _ in range(at_once):
                addition = self._best_addition(state, room, unserved, used)
                if addition is None:
                    break
                model, group = addition
                placed, state = True, state.plus(model, group)
                room.take(model, group)
                used[group] += self._work_alone[model] * unserved[model]
                unserved[model] //= 2
            if not placed:
                return max(best, self._filled(state, room), key=lambda each: each.score)
            last = self.judged(state)
            best = max(best, last, key=lambda each: each.score)

    def beam(self, frames: Sequence[Frame]) -> Selected:
        """Try every model on every group after each of the `BEAM_WIDTH` best selections so far."""
        best = self.judged(Selection.empty(frames))
        beam = [(best.selection, Room(self._problem, frames))]
        while True:
            found: dict[object, tuple[Selected, Room]] = {}
            for selection, room in beam:
                for model, group in self._additions(selection, room):
                    longer = selection.plus(model, group)
                    key = self._canonical(longer)
                    if key not in found:
                        left = room.copy()
                        left.take(model, group)
                        found[key] = self.judged(longer), left
            if not found:
                return best
            ranked = sorted(found.values(), key=lambda each: each[0].score, reverse=True)[:BEAM_WIDTH]
            best = max(best, ranked[0][0], key=lambda each: each.score)
            beam = [(each.selection, left) for each, left in ranked]

    def _best_addition(
        self, state: Selection, room: Room, unserved: Int64, used: NDArray[np.float64]
    ) -> tuple[int, int] | None:
        order = sorted(self._allowed(state, room), key=lambda model: (-int(unserved[model]), model))
        for model in order:
            if not unserved[model]:
                return None
            groups = self._groups_for(model, state, room)
            if groups:
                return model, min(groups, key=lambda group: (float(used[group]), group))
        return None

    def _filled(self, state: Selection, room: Room) -> Selected:
        """Use what memory is left: replicas for the models that have most work for each of theirs."""
        counts = self._simulator.traffic.counts(self._count)
        load = self._work * counts
        while True:
            replicas = np.zeros(self._count, np.int64)
            for held in state.held:
                replicas[list(held)] += 1
            placed = False
            for model in sorted(self._models, key=lambda each: -float(load[each]) / max(1, int(replicas[each]))):
                groups = self._groups_for(model, state, room)
                if groups:
                    group = min(groups, key=lambda each: (float(load[list(state.held[each])].sum()), each))
                    state, placed = state.plus(model, group), True
                    room.take(model, group)
            if not placed:
                return self.judged(state)

    def _additions(self, selection: Selection, room: Room) -> Iterator[tuple[int, int]]:
        for model in self._allowed(selection, room):
            for group in self._groups_for(model, selection, room):
                yield model, group

    def _allowed(self, state: Selection, room: Room) -> Sequence[int]:
        """Return the models that may be placed next."""
        if not self._covers:
            return self._models
        bare = [model for model in sorted(self._asked - state.models) if self._groups_for(model, state, room)]
        return bare or self._models

    def _groups_for(self, model: int, state: Selection, room: Room) -> list[int]:
        return [group for group in np.nonzero(room.fits(model))[0].tolist() if model not in state.held[group]]

    def _most_replicas(self, frames: Sequence[Frame]) -> int:
        """Bound the number of replicas from above by the memory."""
        smallest = max(1, min(self._problem.models[model].size_bytes for model in self._models))
        memory = sum(self._problem.devices[place].memory_bytes for frame in frames for place in frame.devices)
        return min(len(self._models) * len(frames), memory // smallest)

    def _canonical(self, selection: Selection) -> object:
        """Return the same for selections that differ only in which of several like groups is which."""
        devices = self._problem.devices
        return tuple(
            sorted(
                (tuple(devices[place].memory_bytes for place in frame.devices), tuple(sorted(held)))
                for frame, held in zip(selection.frames, selection.held, strict=True)
            )
        )
