"""Why a number of devices is enough for a target, or none is, in words."""

from __future__ import annotations

from collections.abc import Iterator

from builder.placement.planner.percentage import percentage
from builder.placement.planner.target import Target
from builder.placement.planner.tried import Tried

_MOST_NAMES = 3
_MOST_DIGITS = 17
"""No two binary fractions between 0 and 1 that counts give are alike in so many."""


def verdict_of_fewest(count: int, total: int, target: Target, verdict: str) -> str:
    """Return the plan in a line, which begins with the number of devices."""
    return f"{count} of {counted(total)} {_is(count)} enough for {target} on time; {verdict}"


def enough_lines(target: Target, enough: Tried, fewer: Tried | None) -> Iterator[str]:
    """Say what the fewest devices come to, and what one fewer does; there is no such one of a single device."""
    digits = _digits(target, enough, fewer)
    first = "device" if enough.count == 1 else counted(enough.count)
    yield f"The first {first} in the order listed: {_on_time(enough, digits)}."
    if fewer is not None:
        yield f"{_subject(fewer.count)} too few: {_why(fewer, digits)}."
    yield f"The {'lower share' if len(enough.shares) > 1 else 'share'} has to reach {target}."
    yield "The number of devices is found by doubling it until it is enough, and then halving between."


def missed_line(target: Target, best: Tried, total: int) -> str:
    """Say that no number of devices is enough, what the best one comes to, and after a semicolon what may help."""
    judged = percentage(best.judged)
    with_count = "" if best.count == total else f", with {counted(best.count)}"
    reason = f"the best is {judged} {_judged_by(best)}{with_count}"
    if best.missing:
        reason, remedy = f"{reason}, and {_nowhere(best)}", "more devices, or some with more memory,"
    else:
        remedy = "more devices or longer --deadlines" if best.count == total else "longer --deadlines"
    return f"{_subject(total)} too few for {target} on time: {reason}; {remedy} may help"


def note_of(tried: Tried) -> str:
    """Return what a try comes to, in a few words."""
    if tried.no_room is not None:
        return "no room for every root"
    return _nowhere(tried) if tried.missing else f"{percentage(tried.judged)} on time"


def counted(count: int) -> str:
    return f"{count:,} device" if count == 1 else f"{count:,} devices"


def _subject(count: int) -> str:
    return f"{counted(count)} {_is(count)}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _why(tried: Tried, digits: int) -> str:
    if tried.no_room is not None:
        return str(tried.no_room)
    return _nowhere(tried) if tried.missing else _on_time(tried, digits)


def _on_time(tried: Tried, digits: int) -> str:
    seen, *held_out = (percentage(share, digits) for share in tried.shares)
    if not held_out:
        return f"{seen} of the requests are on time, and there are too few to hold some out"
    return f"{seen} of the requests that the search saw are on time, and {held_out[0]} of the held-out requests"


def _judged_by(tried: Tried) -> str:
    if len(tried.shares) == 1:
        return "of all requests, as there are too few to hold some out"
    seen, held_out = tried.shares
    if seen < held_out:
        return f"of the requests that the search saw ({percentage(held_out)} of the held-out requests)"
    return f"of the held-out requests ({percentage(seen)} of the requests that the search saw)"


def _nowhere(tried: Tried) -> str:
    names = ", ".join(map(repr, tried.missing[:_MOST_NAMES]))
    others = " and others" if len(tried.missing) > _MOST_NAMES else ""
    return f"{names}{others} {_stand(len(tried.missing))} nowhere"


def _stand(count: int) -> str:
    return "stands" if count == 1 else "stand"


def _digits(target: Target, enough: Tried, fewer: Tried | None) -> int:
    """Return as many decimals as tell both numbers of devices apart, and at least those of the target."""
    pairs = [] if fewer is None else [*zip(enough.shares, fewer.shares, strict=False)]
    digits = max(1, target.num_decimals)
    while digits < _MOST_DIGITS and any(
        share != other and percentage(share, digits) == percentage(other, digits) for share, other in pairs
    ):
        digits += 1
    return digits
