"""A change of placements in steps: groups that share no device are changed one after the other.

Their order is the one that interrupts as few requests as possible: a root that stands on two groups goes on while one
of them is changed. Of many steps the order is found greedily.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from builder.placement.planner.change import Step
from builder.placement.planner.group import Device, Group
from builder.placement.planner.move_costs import MoveCosts

_MOST_ORDERED = 10
"""Of so many steps all orders are compared."""

Float64 = NDArray[np.float64]


def named_as_before(before: Sequence[Group], after: Sequence[Group]) -> tuple[Group, ...]:
    """Give groups the names of those with the same devices and shape, and names of their own to the others."""
    names = {(group.devices, group.shape): group.name for group in before}
    taken = set(names.values())
    fresh = (name for number in range(len(before) + len(after)) if (name := f"g{number}") not in taken)
    return tuple(replace(group, name=names.get((group.devices, group.shape)) or next(fresh)) for group in after)


def steps_between(
    before: Sequence[Group],
    after: Sequence[Group],
    devices: Sequence[Device],
    costs: MoveCosts,
    rates: Mapping[str, float],
) -> tuple[Step, ...]:
    """Return what makes one placement of another, whose groups are `named_as_before`.

    `rates` says how many requests a second each stack answers in time, by its name.
    """
    host_of = {device.name: device.host for device in devices}
    order = _Order([_Action.of(part, costs) for part in _parts(before, after)], before, after, rates)
    return tuple(order.steps(host_of))


@dataclass(frozen=True)
class _Part:
    """Groups before and after that share devices, and share none with any other."""

    before: tuple[Group, ...]
    after: tuple[Group, ...]

    @property
    def stays(self) -> bool:
        """Whether it is one group, which only holds other stacks afterwards."""
        return [group.name for group in self.before] == [group.name for group in self.after]


def _parts(before: Sequence[Group], after: Sequence[Group]) -> list[_Part]:
    """Return the parts that differ."""
    found: list[_Part] = []
    for part in [*(_Part((group,), ()) for group in before), *(_Part((), (group,)) for group in after)]:
        devices = _devices(part)
        touching = [other for other in found if devices & _devices(other)]
        found = [other for other in found if other not in touching]
        joined = [*touching, part]
        found.append(_Part(_all(each.before for each in joined), _all(each.after for each in joined)))
    return [part for part in found if not part.stays or _spans(part.before[0]) != _spans(part.after[0])]


def _all(groups: Iterable[tuple[Group, ...]]) -> tuple[Group, ...]:
    return tuple(group for each in groups for group in each)


def _devices(part: _Part) -> set[str]:
    return {name for group in (*part.before, *part.after) for name in group.devices}


def _spans(group: Group) -> frozenset[tuple[str, int, int]]:
    """Return what a group runs, whatever memory it takes."""
    return frozenset((stack.name, stack.first_half, stack.end_half) for stack in group.stacks)


@dataclass(frozen=True)
class _Action:
    """A step, before it has its turn."""

    part: _Part
    takes_s: float

    @classmethod
    def of(cls, part: _Part, costs: MoveCosts) -> _Action:
        sizes = [group.stage_bytes(stage) for group in part.after for stage in range(group.shape.stages)]
        started_s = costs.load_s(max(sizes, default=0))  # all devices load at once
        return cls(part, (costs.reload_s if part.stays else costs.reshape_s) + started_s)


class _Order:
    """Finds an order of actions; each is known by its place.

    Shape:
        Vectors are `[stacks]`: how many groups hold each.
    """

    def __init__(
        self, actions: Sequence[_Action], before: Sequence[Group], after: Sequence[Group], rates: Mapping[str, float]
    ) -> None:
        self._actions = actions
        self._names = sorted({stack.name for group in before for stack in group.stacks})
        self._at_first = self._held(before)
        # What stands nowhere afterwards is given up, and not interrupted.
        is_to_stay = self._held(after) > 0
        self._rates = np.where(is_to_stay, [rates.get(name, 0.0) for name in self._names], 0.0)
        self._is_to_stay = is_to_stay
        self._taken = [self._held(action.part.before) for action in actions]
        self._given = [self._held(action.part.after) for action in actions]

    def steps(self, host_of: Mapping[str, str]) -> Iterable[Step]:
        """Yield the steps in the order that interrupts fewest requests for stacks that stand nowhere meanwhile."""
        order = self._exact() if len(self._actions) <= _MOST_ORDERED else self._greedy()
        held = self._at_first.copy()
        for place in order:
            part, missing = self._actions[place].part, self._missing(place, held)
            lost = self._lost(place, held)
            held += self._given[place] - self._taken[place]
            stays = {group.name for group in part.after}
            yield Step(
                host=host_of[min(_devices(part))],
                stops=tuple(group.name for group in part.before if group.name not in stays),
                groups=part.after,
                takes_s=self._actions[place].takes_s,
                cost_requests=lost,
                interrupts=tuple(name for name, is_missing in zip(self._names, missing, strict=True) if is_missing),
            )

    def _exact(self) -> list[int]:
        """Go through the sets of what is done: what an action interrupts depends on the set, not on its order."""
        count = len(self._actions)
        held = {0: self._at_first}
        least = {0: (0.0, list[int]())}
        for done in range(1 << count):
            if done not in least:
                continue
            cost, order = least[done]
            for place in self._open(done):
                then = done | 1 << place
                total = cost + self._cost(place, held[done])
                if then not in least or total < least[then][0]:
                    least[then] = total, [*order, place]
                    held[then] = held[done] + self._given[place] - self._taken[place]
        return least[(1 << count) - 1][1]

    def _greedy(self) -> list[int]:
        held, done, order = self._at_first.copy(), 0, list[int]()
        while len(order) < len(self._actions):
            place = min(self._open(done), key=lambda each: (self._cost(each, held), each))
            held += self._given[place] - self._taken[place]
            done |= 1 << place
            order.append(place)
        return order

    def _open(self, done: int) -> list[int]:
        return [place for place in range(len(self._actions)) if not done >> place & 1]

    def _cost(self, place: int, held: Float64) -> float:
        return self._actions[place].takes_s * float(self._rates[self._missing(place, held)].sum())

    def _lost(self, place: int, held: Float64) -> float:
        """Count the requests that may be late: those of the replicas that are away, of which others may take some."""
        away = np.where(held > 0, self._taken[place] / np.maximum(held, 1.0), 1.0)
        return self._actions[place].takes_s * float((self._rates * away).sum())

    def _missing(self, place: int, held: Float64) -> NDArray[np.bool_]:
        """Say which stacks stand nowhere while an action is made."""
        missing: NDArray[np.bool_] = self._is_to_stay & (held - self._taken[place] <= 0)
        return missing

    def _held(self, groups: Iterable[Group]) -> Float64:
        places = {name: place for place, name in enumerate(self._names)}
        counts = np.zeros(len(self._names))
        for group in groups:
            for name in {stack.name for stack in group.stacks} & places.keys():
                counts[places[name]] += 1
        return counts
