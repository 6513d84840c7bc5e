"""Large fleets in cells of at most 64 devices: families go to cells by their peaks, and each cell is planned alone.

A family is what is routed as one: a root's domain, or a tenant with much traffic. A family that is more than a cell's
share stands in several, each of which gets a part of its requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from builder.placement.planner.frames import by_host
from builder.placement.planner.group import Device
from builder.placement.planner.model import Model
from builder.placement.planner.problem import STAGE_COUNTS, Problem
from builder.placement.planner.search import best_selection
from builder.placement.planner.selection import Selection
from builder.placement.planner.traffic import Int64, Traffic
from builder.progress import Report, Step, ignore

MOST_DEVICES = 64
_SLACK = 1.05
"""What a cell may be filled to, of its share of all work."""


@dataclass(frozen=True, eq=False)
class Families:
    """All families of a fleet.

    Shape:
        models: `[families]`, the place of each family's model.
        peaks: `[families]`, how many devices its busiest span keeps busy.
        requests: the traffic, whose models are places of families.
    """

    models: Int64
    peaks: NDArray[np.float64]
    requests: Traffic


@dataclass(frozen=True)
class Cell:
    """Some devices, as places, and what share of which families they serve."""

    devices: tuple[int, ...]
    shares: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class PlannedCell:
    """A cell with its selection, whose devices and models are those of the fleet."""

    cell: Cell
    selection: Selection
    attainment: float


def plan_in_cells(
    models: Sequence[Model],
    devices: Sequence[Device],
    families: Families,
    seed: int,
    hop_us: int = 0,
    stage_counts: tuple[int, ...] = STAGE_COUNTS,
    report: Report = ignore,
) -> list[PlannedCell]:
    """Plan each cell; cells of like devices and like work are planned once."""
    cells = cells_of(families, [model.size_bytes for model in models], devices, stage_counts=stage_counts)
    traffics = _dealt(families, cells, seed)
    planned: dict[object, tuple[Selection, float]] = {}
    found = []
    for number, (cell, traffic) in enumerate(zip(cells, traffics, strict=True)):
        report(Step("cells", number, len(cells)))
        used = sorted({int(families.models[family]) for family, _ in cell.shares})
        if not len(traffic):
            continue
        key = _likeness(cell, families, devices)
        if key not in planned:
            own = tuple(models[model] for model in used)
            where = tuple(devices[place] for place in cell.devices)
            problem = Problem(own, where, _renumbered(traffic, used), hop_us, stage_counts)
            best = best_selection(problem)
            planned[key] = best.selection, best.played.attainment
        selection, attainment = planned[key]
        held = tuple(frozenset(used[model] for model in each) for each in selection.held)
        there = selection.on(dict(enumerate(cell.devices)))
        found.append(PlannedCell(cell, Selection(there.frames, held), attainment))
    return found


def cells_of(
    families: Families,
    model_bytes: Sequence[int],
    devices: Sequence[Device],
    most: int = MOST_DEVICES,
    stage_counts: tuple[int, ...] = STAGE_COUNTS,
) -> list[Cell]:
    """Deal families to cells: the busiest first, to the first cell that has room, their root's if one has.

    Of other cells those go first in which a root is cut into the fewest stages.
    """
    chunks = _chunks(devices, most)
    total = float(families.peaks.sum())
    targets = [(total or 1.0) * len(chunk) / len(devices) for chunk in chunks]
    memory = [sorted((devices[place].memory_bytes for place in chunk), reverse=True) for chunk in chunks]
    possible = [_possible(size_bytes, memory, stage_counts) for size_bytes in model_bytes]
    filling = _Filling(targets, [sum(each) for each in memory], model_bytes, possible)
    for family in np.argsort(-families.peaks, kind="stable").tolist():
        filling.add(family, int(families.models[family]), float(families.peaks[family]))
    return [Cell(tuple(chunk), tuple(shares)) for chunk, shares in zip(chunks, filling.shares, strict=True)]


class _Filling:
    """Cells while families are put there.

    `possible` are the cells that each model fits in, those first in which it is cut least.
    """

    def __init__(
        self,
        targets: Sequence[float],
        memory: Sequence[int],
        model_bytes: Sequence[int],
        possible: Sequence[Sequence[int]],
    ) -> None:
        self.shares: list[list[tuple[int, float]]] = [[] for _ in targets]
        self._targets, self._bytes, self._possible = targets, model_bytes, possible
        self._load, self._memory = [0.0] * len(targets), list(memory)
        self._roots: list[set[int]] = [set() for _ in targets]

    def add(self, family: int, model: int, peak: float) -> None:
        for cell, share in self._parts(model, peak):
            self.shares[cell].append((family, share))
            self._load[cell] += share * peak
            if model not in self._roots[cell]:
                self._roots[cell].add(model)
                self._memory[cell] -= self._bytes[model]

    def _parts(self, model: int, peak: float) -> list[tuple[int, float]]:
        """Return one cell, or where none has room for so much several, each with a part."""
        at_home = [cell for cell, roots in enumerate(self._roots) if model in roots]
        possible = self._possible[model]
        new = [cell for cell in possible if self._bytes[model] <= self._memory[cell] and cell not in at_home]
        if (roomy := self._roomy(at_home, new, peak)) is not None:
            return [(roomy, 1.0)]
        cells = [*at_home, *new] or possible or [*range(len(self._targets))]
        if peak > (_SLACK - 1) * min(self._targets[cell] for cell in cells):
            return self._split(cells, peak)
        least = min(at_home or cells, key=lambda cell: (self._load[cell] + peak) / self._targets[cell])
        return [(least, 1.0)]

    def _roomy(self, at_home: Sequence[int], new: Sequence[int], load: float) -> int | None:
        for filled in (1.0, _SLACK):
            for cells in (at_home, new):
                if roomy := [cell for cell in cells if self._load[cell] + load <= filled * self._targets[cell]]:
                    return roomy[0]
        return None

    def _split(self, cells: Sequence[int], peak: float) -> list[tuple[int, float]]:
        """Return as few as can take it, those with most room, and fill them one by one; all where none has any."""
        rooms = {cell: self._targets[cell] - self._load[cell] for cell in cells}
        parts: dict[int, float] = {}
        left, slack = peak, 0.0
        for cell in sorted(cells, key=lambda each: -rooms[each]):
            if rooms[cell] <= 0 or left <= slack:
                break
            parts[cell] = min(rooms[cell], left)
            left, slack = left - parts[cell], slack + (_SLACK - 1) * self._targets[cell]
        parts = parts or {cell: self._targets[cell] for cell in cells}
        return [(cell, part / sum(parts.values())) for cell, part in parts.items()]


def _possible(size_bytes: int, memory_bytes: Sequence[Sequence[int]], stage_counts: Sequence[int]) -> list[int]:
    """Return the cells that a model fits in, those first in which it is cut least."""
    found = [(_least_stages(size_bytes, each, stage_counts), cell) for cell, each in enumerate(memory_bytes)]
    return [cell for _, cell in sorted((stages, cell) for stages, cell in found if stages is not None)]


def _least_stages(size_bytes: int, memory_bytes: Sequence[int], stage_counts: Sequence[int]) -> int | None:
    """Return the fewest equal stages that devices hold, the largest first; None where there are none."""
    for count in sorted(stage_counts):
        if count <= len(memory_bytes) and size_bytes <= count * memory_bytes[count - 1]:
            return count
    return None


def _chunks(devices: Sequence[Device], most: int) -> list[list[int]]:
    """Cut the devices into cells, hosts whole where they are not larger than a cell."""
    chunks: list[list[int]] = [[]]
    for host in by_host(devices, range(len(devices))):
        for begin in range(0, len(host), most):
            part = host[begin : begin + most]
            if len(chunks[-1]) + len(part) > most:
                chunks.append([])
            chunks[-1] += part
    return chunks


def _dealt(families: Families, cells: Sequence[Cell], seed: int) -> list[Traffic]:
    """Deal the requests to cells: a family of several cells by chance, in the parts of its shares."""
    requests, rng = families.requests, np.random.default_rng(seed)
    homes: list[list[tuple[int, float]]] = [[] for _ in range(len(families.models))]
    for number, cell in enumerate(cells):
        for family, share in cell.shares:
            homes[family].append((number, share))
    flat = np.array([cell for own in homes for cell, _ in own], np.int64)
    # Where the part of each cell of a family ends, as the family's place and the sum of the shares up to there.
    sums = [np.cumsum([share for _, share in own]) for own in homes]
    ends = np.concatenate([family + each / each[-1] for family, each in enumerate(sums)])
    drawn = requests.models + rng.random(len(requests))
    cell_of = flat[np.searchsorted(ends, drawn, side="right")]
    of_models = Traffic(requests.arrived_us, families.models[requests.models], requests.deadlines_us)
    return [of_models.kept(cell_of == number) for number in range(len(cells))]


def _renumbered(traffic: Traffic, used: Sequence[int]) -> Traffic:
    return Traffic(traffic.arrived_us, np.searchsorted(used, traffic.models), traffic.deadlines_us)


def _likeness(cell: Cell, families: Families, devices: Sequence[Device]) -> object:
    """Return the same for cells of like devices whose roots have about the same work."""
    work: dict[int, float] = {}
    for family, share in cell.shares:
        model = int(families.models[family])
        work[model] = work.get(model, 0.0) + share * float(families.peaks[family])
    hosts = {host: number for number, host in enumerate(dict.fromkeys(devices[place].host for place in cell.devices))}
    kinds = tuple((devices[place].memory_bytes, hosts[devices[place].host]) for place in cell.devices)
    return kinds, tuple(sorted((model, float(f"{each:.1g}")) for model, each in work.items()))
