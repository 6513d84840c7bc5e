"""Why a placement changes or stays, in words."""

from __future__ import annotations

from collections.abc import Iterator

from builder.placement.planner.change import Change
from builder.placement.planner.hysteresis import Hysteresis

_NOTHING_BETTER = "No other placement answers more requests in time than the one that is there: it stays."


def change_lines(change: Change, hysteresis: Hysteresis, is_made: bool, fits: bool) -> Iterator[str]:
    """Say what a change would gain and cost, whether it is made, and whom its steps interrupt."""
    if not change.steps:
        yield _NOTHING_BETTER
        return
    yield (
        f"The best placement found has {change.gain_points:+.1f} points in time, {change.gain_requests:+,.0f} requests "
        f"within {_span(change.window_s)}. {_moves(change)} would make up to {change.cost_requests:,.0f} late."
    )
    if not fits:
        yield (
            "The placement that is there takes more memory than the devices have by now, or cuts roots in stages that "
            "are not wanted any more, so it changes in any case."
        )
    elif is_made:
        yield (
            f"That is {_points(hysteresis)} or more, and {hysteresis.least_return:g} times the cost or "
            "more: the placement changes."
        )
    elif change.gain_points <= 0:
        yield "That is no gain: the placement stays."
    elif not hysteresis.gains(change):
        yield f"That is less than {_points(hysteresis)}: the placement stays."
    else:
        yield f"That is less than {hysteresis.least_return:g} times the cost: the placement stays."
    if is_made:
        yield from _interruptions(change)


def _points(hysteresis: Hysteresis) -> str:
    return "a point" if hysteresis.least_points == 1 else f"{hysteresis.least_points:g} points"


def _moves(change: Change) -> str:
    moves, costs = change.moves, change.costs
    parts = [
        f"{_counted(moves.loads, 'root')} onto devices at {costs.loaded_bytes_per_s / 1e9:g} GB a second",
        f"{_counted(moves.reloads, 'group')} of the same shape started anew, {costs.reload_s:g} s each",
        f"{_counted(moves.reshapes, 'group')} of a new shape, {costs.reshape_s:g} s each",
        f"{_counted(moves.hplms, 'hPLM')} to other servers, {1e3 * costs.hplm_s:g} ms each",
    ]
    counts = (moves.loads, moves.reloads, moves.reshapes, moves.hplms)
    return ", ".join(part for part, count in zip(parts, counts, strict=True) if count) or "Its moves"


def _interruptions(change: Change) -> Iterator[str]:
    for number, step in enumerate(change.steps, start=1):
        if step.interrupts:
            names = ", ".join(map(repr, step.interrupts[:3])) + (" and others" if len(step.interrupts) > 3 else "")
            yield (
                f"While step {number} of {len(change.steps)} is made, for {step.takes_s:.0f} s, {names} stands on no "
                "group: no order of the steps avoids it that was found. Other servers answer, and load it first."
            )


def _span(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
