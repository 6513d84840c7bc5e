"""Why a plan is as it is, in words: one line for each decision, with the numbers that made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from builder.placement.planner.baselines import Baseline, fits_everywhere
from builder.placement.planner.buckets import convoys, shortest_patience_us
from builder.placement.planner.percentage import percentage
from builder.placement.planner.placeable import placeable
from builder.placement.planner.plan import Alternative
from builder.placement.planner.problem import Problem
from builder.placement.planner.selection import Selection

OWN = "this plan"
_MOST_MODELS = 20
_MOST_CONVOYS = 3
_GIGABYTE = 1e9


def verdict_of(problem: Problem, selection: Selection) -> str:
    """Return the plan in a line."""
    sizes = Counter(frame.num_stages for frame in selection.frames)
    everything = frozenset(range(len(problem.models)))
    if set(sizes) == {1}:
        if all(held == everything for held in selection.held):
            return "all everywhere, no stages"
        return f"no stages: {_counted(sizes[1], 'device')} with {_counted(selection.num_replicas, 'replica')}"
    parts = [_counted(sizes.pop(1), "group") + " of one device"] if sizes[1] else []
    parts += [f"{_counted(count, 'group')} of {stages} stages" for stages, count in sorted(sizes.items()) if count]
    return ", ".join(parts) + f", with {_counted(selection.num_replicas, 'replica')}"


def decisions(problem: Problem, selection: Selection, alternatives: Mapping[str, Alternative]) -> Iterator[str]:
    yield _memory(problem, selection)
    yield from _parted(problem, selection)
    yield from _staged(problem, selection, alternatives)
    yield from _replicas(problem, selection)
    yield from _missing(problem, selection)
    yield from _compared(alternatives)


def _memory(problem: Problem, selection: Selection) -> str:
    needed = sum(model.size_bytes for model in problem.models)
    smallest = min(device.memory_bytes for device in problem.devices)
    if not fits_everywhere(problem):
        return f"All roots take {_size(needed)}, and the smallest device has {_size(smallest)}: not all fit everywhere."
    if verdict_of(problem, selection) == "all everywhere, no stages":
        return (
            f"All roots take {_size(needed)}, which every device has: all stand everywhere, any device answers any "
            "burst, and stages would only cost."
        )
    return f"All roots take {_size(needed)}, which every device has, but not all are to share devices."


def _parted(problem: Problem, selection: Selection) -> Iterator[str]:
    """Name models that delay others, and whether they were parted."""
    patience = shortest_patience_us(problem)
    for convoy in convoys(problem)[:_MOST_CONVOYS]:
        long, short = problem.models[convoy.long], problem.models[convoy.short]
        share = any({convoy.long, convoy.short} <= held for held in selection.held)
        yield (
            f"A full batch of {long.name!r} takes {long.full_batch_us / 1e3:,.0f} ms, more than half of the "
            f"{patience[convoy.short] / 1e3:,.0f} ms of the shortest deadline of {short.name!r}: "
            + ("they share devices all the same, as more is in time so." if share else "they share no device.")
        )


def _staged(problem: Problem, selection: Selection, alternatives: Mapping[str, Alternative]) -> Iterator[str]:
    largest = max(device.memory_bytes for device in problem.devices)
    for stages in sorted({frame.num_stages for frame in selection.frames} - {1}):
        held = [group.models for group in selection.groups if group.num_stages == stages]
        too_large = sorted({model for each in held for model in each if problem.models[model].size_bytes > largest})
        if too_large:
            names = ", ".join(f"{problem.models[each].name!r}" for each in too_large[:_MOST_CONVOYS])
            yield f"Groups of {stages} stages: {names} fits on no single device of {_size(largest)}."
            continue
        most = _counted(max(map(len, held)), "root")
        yield f"Groups of {stages} stages hold up to {most}, so that a burst for one of them finds {stages} devices."
    own, without = alternatives[OWN].attainment, alternatives[Baseline.REPLICATION].attainment
    if any(frame.num_stages > 1 for frame in selection.frames) and own is not None and without is not None:
        yield f"Without stages, by selective replication, {_share(without)} would be in time; with them {_share(own)}."


def _replicas(problem: Problem, selection: Selection) -> Iterator[str]:
    total = sum(problem.demand)
    order = sorted(range(len(problem.models)), key=lambda model: (-problem.demand[model], model))
    for model in order[:_MOST_MODELS]:
        count = sum(model in held for held in selection.held)
        if count and problem.demand[model]:
            share = f"{_share(problem.demand[model] / total)} of the work"
            yield f"{problem.models[model].name!r} makes {share}: on {count} of {len(selection.frames)} groups."
    if len(order) > _MOST_MODELS:
        yield f"{len(order) - _MOST_MODELS} more roots make less work than these."


def _missing(problem: Problem, selection: Selection) -> Iterator[str]:
    missing = sorted(set(range(len(problem.models))) - selection.models)
    fitting = placeable(problem) if missing else frozenset()
    for model in missing:
        name = problem.models[model].name
        if problem.demand[model]:
            where = "stands nowhere: the memory does not suffice for every root"
            yield f"{name!r} {where}. Its requests count as late; a fleet answers them by servers that load it first."
        elif model in fitting:
            yield f"{name!r} stands nowhere: the traffic has no request for it, and the memory is needed for others."
        else:
            yield f"{name!r} stands nowhere: it fits on no group of these devices, and no request asks for it."


def _compared(alternatives: Mapping[str, Alternative]) -> Iterator[str]:
    own = alternatives[OWN]
    known = [each for name in Baseline if (each := alternatives[name]).attainment is not None]
    if own.attainment is None or not known:
        return
    best = max(known, key=lambda each: each.attainment or 0.0)
    nearest = f"{best.name} comes nearest, with {_share(best.attainment)}"
    yield f"In time are {_share(own.attainment)}; of the others {nearest}."
    if own.held_out is not None:
        yield f"Of requests that the search has not seen {_share(own.held_out)} are in time."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _share(share: float | None) -> str:
    return percentage(share or 0.0)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIGABYTE:.3g} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.3g} MB"
