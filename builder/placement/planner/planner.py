"""A plan for devices and traffic: the search on some slices of it, the judgement on others, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import xxhash

from backends.scheduling.cuts import stage_sums
from backends.storage import json_checksum
from builder.placement.planner.baselines import Baselines, baselines
from builder.placement.planner.cells import MOST_DEVICES, Families, plan_in_cells
from builder.placement.planner.explaining import OWN, decisions, verdict_of
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.group_simulator import GroupSimulator
from builder.placement.planner.judging import Judge
from builder.placement.planner.model import Model
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.placeable import require_places
from builder.placement.planner.plan import Alternative, Plan
from builder.placement.planner.problem import STAGE_COUNTS, Problem
from builder.placement.planner.replacing import FREE, TIMED, replaced
from builder.placement.planner.search import best_selection, is_to_be_pooled
from builder.placement.planner.selection import Selection
from builder.placement.planner.slices import Slices, slices_of
from builder.placement.planner.traffic import Traffic
from builder.progress import Report, ignore


@dataclass(frozen=True, eq=False)
class Fleet:
    """What is planned: roots with their fingerprints, the devices, and the traffic."""

    models: tuple[Model, ...]
    devices: tuple[Device, ...]
    fingerprints: Mapping[str, str]
    traffic: Traffic
    hop_us: int = 0
    num_hplms: tuple[int, ...] = ()
    """Of each model, how many the traffic asks for; none where that is not known."""
    stage_counts: tuple[int, ...] = STAGE_COUNTS
    notes: tuple[str, ...] = ()
    """Lines that a plan's reasons begin with: what its times hold for."""

    def checksum(self) -> str:
        """Tell whether a plan was made for this."""
        digest = xxhash.xxh3_128()
        for column in (self.traffic.arrived_us, self.traffic.models, self.traffic.deadlines_us):
            digest.update(column.tobytes())
        parts = {
            "models": [asdict(model) for model in self.models],
            "devices": [asdict(device) for device in self.devices],
            "roots": dict(self.fingerprints),
            "hop_us": self.hop_us,
            "stage_counts": self.stage_counts,
            "traffic": digest.hexdigest(),
        }
        return json_checksum(parts)


@dataclass(frozen=True, eq=False)
class Draft:
    """A placement that was searched for, before it is compared with others.

    Attributes:
        simple: What it is to be compared with.
        own: What it comes to at the recorded load.
    """

    fleet: Fleet
    problem: Problem
    judge: Judge
    simple: Baselines
    selection: Selection
    seed: int

    @cached_property
    def own(self) -> Alternative:
        return self.judge.at_recorded_load(OWN, self.selection)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the models that stand nowhere although requests ask for them."""
        asked = np.unique(self.fleet.traffic.models).tolist()
        return tuple(self.problem.models[model].name for model in asked if model not in self.selection.models)


def plan(fleet: Fleet, seed: int = 0, report: Report = ignore, loads: Sequence[float] = ()) -> Plan:
    """Search for a placement; what it is compared with is also judged at multiples of the load.

    Raises:
        InvalidArgumentError: There is nothing to place or nowhere to, or a root that is asked for fits on no group; or
            there are loads, and too few requests to hold some out.
    """
    return compared(draft(fleet, seed, report, loads))


def draft(fleet: Fleet, seed: int = 0, report: Report = ignore, loads: Sequence[float] = ()) -> Draft:
    """Search for a placement, as `plan`, and leave its comparison to `compared`.

    Raises:
        NoRoomError: A root that is asked for fits on no group of the devices.
        InvalidArgumentError: As `plan`.
    """
    slices = slices_of(fleet.traffic, seed, len(fleet.devices))
    problem = problem_of(fleet, slices)
    judge, simple = Judge(problem, slices, loads), baselines(problem)
    return Draft(fleet, problem, judge, simple, searched(problem, simple, seed, report), seed)


def compared(drafted: Draft) -> Plan:
    """Compare a placement with others, and say why it is as it is."""
    fleet, problem, selection = drafted.fleet, drafted.problem, drafted.selection
    own = drafted.judge.judged(OWN, selection)
    alternatives = {OWN: own, **others(problem, drafted.simple, drafted.judge)}
    return Plan(
        problem=fleet.checksum(),
        devices=fleet.devices,
        groups=groups_of(problem, selection),
        roots=dict(fleet.fingerprints),
        verdict=verdict_of(problem, selection),
        decisions=(*fleet.notes, *decisions(problem, selection, alternatives)),
        alternatives=tuple(alternatives.values()),
        seed=drafted.seed,
    )


def problem_of(fleet: Fleet, slices: Slices) -> Problem:
    """Return what is searched for with the traffic that a search may see.

    Raises:
        InvalidArgumentError: As `plan`.
    """
    problem = Problem(fleet.models, fleet.devices, slices.training, fleet.hop_us, fleet.stage_counts)
    require_places(problem)
    return problem


def others(problem: Problem, simple: Baselines, judge: Judge) -> dict[str, Alternative]:
    """Judge what a plan is compared with."""
    found = {str(name): judge.judged(name, each) for name, each in simple.items()}
    if len(problem.devices) <= MOST_DEVICES:
        for name, loaded_bytes_per_s in ((FREE, None), (TIMED, round(MoveCosts().loaded_bytes_per_s))):
            found[name] = Alternative(name, replaced(problem, loaded_bytes_per_s))
    return found


def searched(problem: Problem, simple: Baselines, seed: int, report: Report) -> Selection:
    """Search for a placement of the whole fleet, or of a large one's cells, among which its roots are dealt.

    Where devices differ, what is best in each cell may be worse than a simple placement of the whole.
    """
    if len(problem.devices) <= MOST_DEVICES or is_to_be_pooled(problem):
        return best_selection(problem, report, simple).selection
    roots = Families(np.arange(len(problem.models)), np.array(problem.demand), problem.traffic)
    whole = Selection((), ())
    shapes = problem.hop_us, problem.stage_counts
    for cell in plan_in_cells(problem.models, problem.devices, roots, seed, *shapes, report):
        whole = whole.beside(cell.selection)
    simulator = GroupSimulator(problem.traffic, problem.forms.times)
    known = [selection for selection in simple.values() if selection is not None]
    return max((whole, *known), key=lambda selection: simulator.play(selection.groups).attainment)


def groups_of(problem: Problem, selection: Selection) -> tuple[Group, ...]:
    """Write a selection as a plan has it: devices and stacks by name."""
    pairs = sorted(zip(selection.frames, selection.held, strict=True), key=lambda pair: pair[0].devices)
    return tuple(
        Group(
            name=f"g{number}",
            devices=tuple(problem.devices[place].name for place in frame.devices),
            shape=Shape(frame.num_stages),
            stacks=tuple(stack for model in sorted(held) for stack in _stacks(problem, model, frame.num_stages)),
        )
        for number, (frame, held) in enumerate(pairs)
    )


def _stacks(problem: Problem, number: int, num_stages: int) -> Sequence[Stack]:
    model, cut = problem.models[number], problem.forms.cuts[number][num_stages]
    spans = zip((0, *cut), cut, stage_sums(model.halves_bytes, cut), strict=False)
    return [Stack(model.root, *span, level=model.level, stage=stage) for stage, span in enumerate(spans)]
