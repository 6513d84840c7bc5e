"""What a placement makes of the traffic that it was searched with, and of the slices that were held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backends.errors import InvalidArgumentError
from builder.placement.planner.group_simulator import GroupSimulator
from builder.placement.planner.plan import Alternative
from builder.placement.planner.problem import Problem
from builder.placement.planner.selection import Selection
from builder.placement.planner.slices import Slices

LOADS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Multiples of the recorded load at which ways to place are compared."""


class Judge:
    """Plays placements on slices of a traffic.

    Args:
        loads: Multiples of the load at which the held-out slices are played too; requests come as many times as fast,
            and have the same time.

    Raises:
        InvalidArgumentError: There are loads and nothing is held out.
    """

    def __init__(self, problem: Problem, slices: Slices, loads: Sequence[float] = ()) -> None:
        if loads and slices.held_out is None:
            raise InvalidArgumentError(
                "the traffic has too few requests to hold some out, so it says nothing of other loads"
            )
        self._times, self._slices, self._loads = problem.forms.times, slices, loads
        self._training = GroupSimulator(slices.training, self._times)
        self._held_out = None if slices.held_out is None else GroupSimulator(slices.held_out, self._times)

    def judged(self, name: str, selection: Selection | None) -> Alternative:
        """Return what a placement comes to; None stands for one that does not fit."""
        if selection is None:
            return Alternative(name, None)
        over_load = tuple((load, self._attainment_at(load, selection)) for load in self._loads)
        return replace(self.at_recorded_load(name, selection), over_load=over_load)

    def at_recorded_load(self, name: str, selection: Selection) -> Alternative:
        """Return what a placement comes to, whatever other loads there are."""
        played = self._training.play(selection.groups)
        held_out = None if self._held_out is None else self._held_out.play(selection.groups).attainment
        mean_ms = played.mean_latency_us / 1e3 if played.is_met.any() else None
        return Alternative(name, played.attainment, held_out, mean_ms)

    def _attainment_at(self, load: float, selection: Selection) -> float:
        return GroupSimulator(self._slices.held_out_at(load), self._times).play(selection.groups).attainment
