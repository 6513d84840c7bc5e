"""Slotted DAS: Algorithm 2 of the paper TCB."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.scheduling.deadline_aware import DeadlineAware
from backends.scheduling.open_batch import OpenBatch
from backends.scheduling.waiting_room import Places, WaitingRoom


class SlottedDeadlineAware(DeadlineAware):
    """What DAS chooses, as far as it lies in slots of equal size.

    Semantics:
        A slot is as long as the longest utility-dominant job, so none of these is too long for it. The batch's tokens
        are cut into as many slots as they hold, and the chosen jobs are put, in the order in which they were chosen,
        into the first slot that still has room. Whoever finds none waits on.

        That suits the layout `slotted`, whose slots are as long as the longest text of a batch: no text that is much
        longer than the others makes all of them long. The ragged layout gains nothing by it. A batch holds less than
        one of DAS, and Theorem 5.1 is about DAS only.
    """

    def _fill(self, batch: OpenBatch, others: Places, waiting: WaitingRoom[Any]) -> int:
        candidates = batch.copy()
        num_dominant = super()._fill(candidates, others, waiting)
        if not num_dominant:
            return 0
        chosen = candidates.places[len(batch.places) :]
        lengths = waiting.num_tokens[chosen]
        slots = _Slots(batch.tokens_left, int(lengths[:num_dominant].max()))
        batch.add_until_full(
            np.array([place for place, tokens in zip(chosen, lengths.tolist(), strict=True) if slots.take(tokens)])
        )
        return num_dominant


class _Slots:
    """First fit; at least one slot, because a single job is always let in."""

    def __init__(self, tokens: int, slot_tokens: int) -> None:
        self._size = slot_tokens
        self._unused = max(1, tokens // slot_tokens)
        self._free: list[int] = []
        """Tokens that each slot in use has left."""

    def take(self, tokens: int) -> bool:
        for number, free in enumerate(self._free):
            if tokens <= free:
                self._free[number] -= tokens
                return True
        if tokens > self._size or not self._unused:
            return False
        self._unused -= 1
        self._free.append(self._size - tokens)
        return True
