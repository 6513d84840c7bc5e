"""What an engine could promise a row that comes now, whatever its deadline: told to the processes in front of it.

Some policies answer short rows first, so that is told for a few lengths. Whoever asks for more than its share stands
behind all others, so of the tenants that do so most it is told by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from backends.scheduling.admission import Admission
from backends.stack_key import StackKey

TOLD_LENGTHS = (1, 4, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128)
"""Tokens of a row, or more up to the next."""
TOLD_TENANTS = 8
_STEPS = 3
_LARGEST_PART = 0.9
"""Of what a row has left, the part that it would be overtaken for; with all of it, it would never be answered."""


@dataclass(frozen=True)
class Outlook:
    """How long from now an answer takes at least: for a row of each of `TOLD_LENGTHS`, and for any row of a tenant.

    At most `TOLD_TENANTS` tenants; all others are as fast as the lengths say.
    """

    finish_in_us: Sequence[float]
    tenants_in_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _LikelyRow:
    """Of no tenant, unless one is named: of one that asks for nothing else."""

    root: StackKey
    num_tokens: int
    arrived_us: int
    deadline_us: int
    tenant: str = ""
    hplm_key: int = 0


def outlook_of(admission: Admission, now_us: int, on_the_way_us: float = 0.0, in_detail: bool = True) -> Outlook:
    """For whoever hears of it `on_the_way_us` before its rows come, and if as much comes meanwhile as is done.

    All of it takes a millisecond for each root. Without details, which matter to rows with deadlines only, a row of any
    length and tenant is promised what the shortest one is.
    """
    if not admission.predicts:
        return Outlook([0.0] * len(TOLD_LENGTHS))
    if not in_detail:
        return Outlook([on_the_way_us + least_finish_in_us(admission, TOLD_LENGTHS[0], now_us)] * len(TOLD_LENGTHS))
    tenants = admission.beyond_share(now_us, TOLD_TENANTS)
    by_length_us = [least_finish_in_us(admission, tokens, now_us) for tokens in TOLD_LENGTHS]
    # Told of a length is what counts for all longer ones too, and as it is no exact bound, one of these may be lower.
    at_least_us = [*accumulate(reversed(by_length_us), min)][::-1]
    of_tenants_us = {tenant: least_finish_in_us(admission, TOLD_LENGTHS[0], now_us, tenant) for tenant in tenants}
    return Outlook(
        [on_the_way_us + in_us for in_us in at_least_us],
        {tenant: on_the_way_us + in_us for tenant, in_us in of_tenants_us.items()},
    )


def least_finish_in_us(admission: Admission, num_tokens: int, now_us: int, beyond_share: str | None = None) -> float:
    """How long a row of so many tokens takes from now that no root or deadline could make faster.

    With a deadline before that it would be refused. It is a row of a tenant that is named as one beyond its share, or
    else of one that no other tenant could be faster than. The longer it may wait, the more overtake it, in whole
    batches, so this is no exact bound; half of the margin is left out, and it is hardly ever too high.
    """
    if not admission.predicts:
        return 0.0
    of_root = partial(_least_of_root_us, admission, num_tokens, now_us, beyond_share)
    return min(map(of_root, admission.roots), default=0.0)


def _least_of_root_us(
    admission: Admission, num_tokens: int, now_us: int, beyond_share: str | None, root: StackKey
) -> float:
    """Where what the row takes meets what it has left: it takes longer by a part of what it has left."""
    steps_us = [0.0]
    for _ in range(_STEPS):
        row = _LikelyRow(root, num_tokens, now_us, now_us + round(steps_us[-1]), beyond_share or "")
        finish_in_us = admission.finish_in_us(row, now_us, within_share=beyond_share is None)
        steps_us.append(max(steps_us[-1], admission.without_half_of_margin * finish_in_us))
    return _limit_of(steps_us)


def _limit_of(steps: Sequence[float]) -> float:
    """Of steps each of which is the same part of the one before."""
    before, last = steps[-2] - steps[-3], steps[-1] - steps[-2]
    part = min(last / before, _LARGEST_PART) if before > 0 else 0.0
    return steps[-1] + last * part / (1.0 - part)
