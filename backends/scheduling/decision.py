"""One decision: what all policies but first-come-first-served begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.scheduling.ageing import Ageing
from backends.scheduling.open_batch import OpenBatch
from backends.scheduling.policy import Capacity
from backends.scheduling.waiting_room import Places, WaitingRoom


@dataclass(frozen=True)
class Decision:
    """Who waits, how much fits, and who of them has aged; `candidates` are those whose root may run now.

    That is, unless aged jobs choose the root, those within their shares, if any of them wait.
    """

    waiting: WaitingRoom[Any]
    capacity: Capacity
    ageing: Ageing
    aged: Places
    candidates: Places

    @classmethod
    def between(cls, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity, ageing: Ageing) -> Decision:
        aged = ageing.aged(waiting, now_us)
        if len(aged) and ageing.chooses_root(waiting):
            candidates = np.flatnonzero(waiting.root == waiting.root[aged[0]])
        else:
            within = np.flatnonzero(waiting.within_share)
            candidates = within if len(within) else np.arange(len(waiting))
        return cls(waiting, capacity, ageing, aged, candidates)

    def opened(self, root: int) -> tuple[OpenBatch, list[Places]]:
        """A batch of that root with the aged jobs' part in it, and the root's other jobs, oldest first.

        Those within their shares come before the others, and these may be none.
        """
        batch = OpenBatch(self.waiting, self.capacity)
        places = np.flatnonzero(self.waiting.root == root)
        aged = self.aged[self.waiting.root[self.aged] == root]
        if len(aged):
            part = OpenBatch(self.waiting, self.ageing.part_of(self.capacity))
            part.add_until_full(aged)
            batch.add_until_full(np.array(part.places))
            places = places[~np.isin(places, part.places)]
        within = self.waiting.within_share[places]
        return batch, [group for group in (places[within], places[~within]) if len(group)]
