"""A batch that is being put together: what is in it, and what still fits."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np

from backends.scheduling.policy import Capacity
from backends.scheduling.waiting_room import Places, WaitingRoom


class OpenBatch:
    """Places of jobs of one root, never more than the capacity; the first job is let in however long it is."""

    def __init__(self, waiting: WaitingRoom[Any], capacity: Capacity) -> None:
        self.places: list[int] = []
        self._num_tokens = waiting.num_tokens
        self._hplm_key = waiting.hplm_key
        self._capacity = capacity
        self._adapters: set[int] = set()
        self.rows_left = capacity.max_rows
        self.tokens_left = capacity.max_tokens

    def copy(self) -> OpenBatch:
        other = copy(self)
        other.places = self.places.copy()
        other._adapters = self._adapters.copy()
        return other

    def add_until_full(self, order: Places) -> int:
        """The first ones, until the next does not fit; nobody is overtaken. How many they are."""
        count = 0
        for place, tokens, key in self._described(order[: self.rows_left]):
            if not self._fits(tokens, key):
                break
            self._add(place, tokens, key)
            count += 1
        return count

    def add_all_that_fit(self, order: Places) -> None:
        """One after the other; whoever does not fit is passed over.

        Most of a long queue cannot fit into the little that is left, so it is asked all at once, each time as many
        have been looked at as there were rows left.
        """
        while self.rows_left and len(order):
            window, order = order[: self.rows_left], order[self.rows_left :]
            for place, tokens, key in self._described(window):
                if self._fits(tokens, key):
                    self._add(place, tokens, key)
            order = order[self._may_fit(order)]

    def _described(self, order: Places) -> Iterable[tuple[int, int, int]]:
        return zip(order.tolist(), self._num_tokens[order].tolist(), self._hplm_key[order].tolist(), strict=True)

    def _may_fit(self, order: Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
        fits = self._num_tokens[order] <= self.tokens_left
        if len(self._adapters) == self._capacity.max_adapters:
            fits &= np.isin(self._hplm_key[order], list(self._adapters))
        return fits

    def _fits(self, tokens: int, key: int) -> bool:
        if not self.places:
            return True
        has_adapter = key in self._adapters or len(self._adapters) < self._capacity.max_adapters
        return self.rows_left > 0 and tokens <= self.tokens_left and has_adapter

    def _add(self, place: int, tokens: int, key: int) -> None:
        self.places.append(place)
        self._adapters.add(key)
        self.rows_left -= 1
        self.tokens_left -= tokens
