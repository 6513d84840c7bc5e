"""A plan in place of another: the placement stays, unless a new one gains clearly more than its moves cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from builder.placement.planner.aligning import aligned
from builder.placement.planner.baselines import baselines
from builder.placement.planner.change import Change, Moves, Step, groups_checksum
from builder.placement.planner.explaining import OWN, decisions, verdict_of
from builder.placement.planner.explaining_change import change_lines
from builder.placement.planner.group import Group
from builder.placement.planner.group_simulator import GroupSimulator, Played
from builder.placement.planner.hysteresis import Hysteresis
from builder.placement.planner.judging import Judge
from builder.placement.planner.plan import Plan
from builder.placement.planner.planner import Fleet, groups_of, others, problem_of, searched
from builder.placement.planner.problem import Problem
from builder.placement.planner.room import Room
from builder.placement.planner.selection import Frame, Selection
from builder.placement.planner.slices import slices_of
from builder.placement.planner.steps import named_as_before, steps_between
from builder.progress import Report, ignore

BEFORE, FOUND = "as it is placed", "best found"


def replan(
    fleet: Fleet,
    previous: Plan,
    hysteresis: Hysteresis | None = None,
    seed: int = 0,
    report: Report = ignore,
    loads: Sequence[float] = (),
) -> Plan:
    """Search again, and return the better placement, or the one before where the change does not pay.

    The plan has a change without steps where the placement stays.

    Raises:
        NotFoundError: The plan places a root that is not of the fleet.
        FingerprintMismatchError: It was made for other weights of a root.
        InvalidArgumentError: It is for other devices, or as `plan`.
    """
    hysteresis = hysteresis or Hysteresis()
    previous.check_home(fleet.fingerprints)
    previous.require_devices(fleet.devices)
    slices = slices_of(fleet.traffic, seed, len(fleet.devices))
    problem = problem_of(fleet, slices)
    before = selection_of(problem, previous.groups)
    judge, simple = Judge(problem, slices, loads), baselines(problem)
    found = aligned(problem, searched(problem, simple, seed, report), before)
    ways = {BEFORE: judge.judged(BEFORE, before), FOUND: judge.judged(FOUND, found)}
    groups = named_as_before(previous.groups, groups_of(problem, found))
    change = _change(fleet, problem, previous.groups, groups, hysteresis)
    fits = _fits(problem, previous.groups, before)
    moves = bool(change.steps) and (hysteresis.pays(change) or not fits)
    selection, groups = (found, groups) if moves else (before, previous.groups)
    own = replace(ways[FOUND if moves else BEFORE], name=OWN)
    alternatives = {OWN: own, **ways, **others(problem, simple, judge)}
    return Plan(
        problem=fleet.checksum(),
        devices=fleet.devices,
        groups=groups,
        roots=dict(fleet.fingerprints),
        verdict=verdict_of(problem, selection),
        decisions=(
            *change_lines(change, hysteresis, moves, fits),
            *fleet.notes,
            *decisions(problem, selection, alternatives),
        ),
        alternatives=tuple(alternatives.values()),
        seed=seed,
        change=change if moves else replace(change, steps=()),
    )


def selection_of(problem: Problem, groups: Sequence[Group]) -> Selection:
    """Return a placement as a search has it, without stacks that are not to be placed any more, or cannot be so."""
    places = {device.name: place for place, device in enumerate(problem.devices)}
    numbers = {model.name: number for number, model in enumerate(problem.models)}
    known = [group for group in groups if group.shape.stages in problem.stage_counts]
    return Selection(
        tuple(Frame(tuple(places[name] for name in group.devices)) for group in known),
        tuple(_held(problem, group, numbers) for group in known),
    )


def _held(problem: Problem, group: Group, numbers: Mapping[str, int]) -> frozenset[int]:
    is_possible = problem.forms.is_possible[problem.forms.shape(group.shape.stages)]
    held = {numbers[stack.name] for stack in group.stacks if stack.name in numbers}
    return frozenset(model for model in held if is_possible[model])


def _fits(problem: Problem, groups: Sequence[Group], selection: Selection) -> bool:
    """Whether a placement has room still, with all of its stacks that are asked for: more hPLMs take more slots."""
    if len(selection.frames) < len(groups):
        return False
    names = {model.name for model in problem.models}
    wanted = [sum(stack.name in names for stack in group.stacks) for group in groups]
    if wanted != [len(held) for held in selection.held]:
        return False
    room = Room(problem, selection.frames)
    for group, held in enumerate(selection.held):
        for model in held:
            if not room.fits(model)[group]:
                return False
            room.take(model, group)
    return True


def _change(
    fleet: Fleet,
    problem: Problem,
    before: Sequence[Group],
    after: Sequence[Group],
    hysteresis: Hysteresis,
) -> Change:
    """Weigh a change by all of the traffic: its busiest spans gain more than it does."""
    played_before, played_after = _played(fleet, problem, before), _played(fleet, problem, after)
    gain = played_after.attainment - played_before.attainment
    seconds = max(1e-6, fleet.traffic.duration_us / 1e6)
    per_s = len(fleet.traffic) / seconds
    met = fleet.traffic.kept(played_before.is_met).counts(len(problem.models))
    met_per_s = {model.name: float(met[number]) / seconds for number, model in enumerate(problem.models)}
    steps = steps_between(before, after, fleet.devices, hysteresis.costs, met_per_s)
    moves = _moves(fleet, before, after, steps)
    of_device = per_s * played_before.attainment / len(fleet.devices)
    return Change(
        previous=groups_checksum(before),
        window_s=hysteresis.window_s,
        gain_points=100 * gain,
        gain_requests=gain * per_s * hysteresis.window_s,
        cost_requests=sum(step.cost_requests for step in steps) + moves.hplms * hysteresis.costs.hplm_s * of_device,
        moves=moves,
        costs=hysteresis.costs,
        steps=steps,
    )


def _played(fleet: Fleet, problem: Problem, groups: Sequence[Group]) -> Played:
    return GroupSimulator(fleet.traffic, problem.forms.times).play(selection_of(problem, groups).groups)


def _moves(fleet: Fleet, before: Sequence[Group], after: Sequence[Group], steps: Sequence[Step]) -> Moves:
    held = {group.name: {stack.name for stack in group.stacks} for group in before}
    changed = {group.name: group for step in steps for group in step.groups}
    loads = sum(len({stack.name for stack in group.stacks} - held.get(name, set())) for name, group in changed.items())
    reloads = sum(name in held for name in changed)
    numbers = dict(zip((model.name for model in fleet.models), fleet.num_hplms, strict=False))
    hplms = sum(count * (1 - _stay(name, before, after)) for name, count in numbers.items())
    return Moves(loads, reloads, len(changed) - reloads, round(hplms))


def _stay(stack: str, before: Sequence[Group], after: Sequence[Group]) -> float:
    """Return the share of a stack's hPLMs that a consistent hash leaves where they are."""
    holders = [
        {group.name for group in groups if any(each.name == stack for each in group.stacks)}
        for groups in (before, after)
    ]
    either = holders[0] | holders[1]
    return len(holders[0] & holders[1]) / len(either) if either else 1.0
