"""The fewest devices, in the order in which they are listed, whose plan meets a target.

More devices need not answer more requests on time: with one more the search may form other groups. So all that holds is
that the number found is enough, and that one device fewer is too few. Both were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backends.errors import TargetMissedError
from builder.placement.planner.explaining_fewest import counted, enough_lines, missed_line, note_of, verdict_of_fewest
from builder.placement.planner.placeable import NoRoomError
from builder.placement.planner.plan import Plan
from builder.placement.planner.planner import Draft, Fleet, compared, draft
from builder.placement.planner.target import Target
from builder.placement.planner.tried import Tried
from builder.progress import Report, Step, ignore


def fewest(fleet: Fleet, target: Target, seed: int = 0, report: Report = ignore, loads: Sequence[float] = ()) -> Plan:
    """Plan for as few of a fleet's devices as meet a target: the first ones.

    Raises:
        TargetMissedError: No number of devices that was tried is enough.
        NoRoomError: A root that is asked for fits on no group, whatever the number.
        InvalidArgumentError: As `plan`.
    """
    tries = _Tries(fleet, target, seed, report, loads)
    drafted = tries.fewest()
    made, count = compared(drafted), len(drafted.fleet.devices)
    return replace(
        made,
        verdict=verdict_of_fewest(count, len(fleet.devices), target, made.verdict),
        decisions=(*enough_lines(target, tries.made[count], tries.made.get(count - 1)), *made.decisions),
    )


class _Tries:
    """Plans of the first devices of a fleet; `made` has what each number of them comes to."""

    def __init__(self, fleet: Fleet, target: Target, seed: int, report: Report, loads: Sequence[float]) -> None:
        self._fleet, self._target, self._seed, self._report, self._loads = fleet, target, seed, report, loads
        self.made: dict[int, Tried] = {}

    def fewest(self) -> Draft:
        """Double the number of devices until it is enough, and halve between it and the last one that was too few."""
        too_few, enough = self._doubled()
        while (count := len(enough.fleet.devices)) - too_few > 1:
            middle = (too_few + count) // 2
            drafted = self._enough(middle)
            if drafted is None:
                too_few = middle
            else:
                enough = drafted
        return enough

    def _doubled(self) -> tuple[int, Draft]:
        """Return the last number that was too few, or 0, and the first draft that is enough."""
        too_few, count, total = 0, 1, len(self._fleet.devices)
        while (drafted := self._enough(count)) is None:
            if count >= total:
                raise self._missed()
            too_few, count = count, min(2 * count, total)
        return too_few, drafted

    def _enough(self, count: int) -> Draft | None:
        """Plan for the first devices; return None where they are too few."""
        part = replace(self._fleet, devices=self._fleet.devices[:count])
        progress = _Progress(self._report, f"try {count} of {counted(len(self._fleet.devices))}")
        drafted: Draft | None = None
        try:
            drafted = draft(part, self._seed, progress.step, self._loads)
        except NoRoomError as error:
            tried = Tried(count, no_room=error)
        else:
            tried = _tried(drafted)
        self.made[count] = tried
        progress.end(note_of(tried))
        return drafted if tried.meets(self._target) else None

    def _missed(self) -> TargetMissedError | NoRoomError:
        placed = [tried for tried in self.made.values() if tried.no_room is None]
        last = self.made[len(self._fleet.devices)]
        if not placed and last.no_room is not None:
            return last.no_room
        best = max(placed, key=lambda tried: (-len(tried.missing), tried.judged, -tried.count))
        return TargetMissedError(missed_line(self._target, best, last.count))


class _Progress:
    """The progress of one try: the steps of its search, and a last one with what it comes to."""

    def __init__(self, report: Report, phase: str) -> None:
        self._report, self._phase, self._total = report, phase, 1
        report(Step(phase, 0, 1))

    def step(self, step: Step) -> None:
        self._total = step.total + 1
        self._report(Step(self._phase, step.done, self._total, step.note))

    def end(self, note: str) -> None:
        self._report(Step(self._phase, self._total, self._total, note))


def _tried(drafted: Draft) -> Tried:
    own = drafted.own
    shares = tuple(share for share in (own.attainment, own.held_out) if share is not None)
    return Tried(len(drafted.fleet.devices), shares, drafted.missing)
