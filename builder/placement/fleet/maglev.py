"""Envoy's deal of tenants to servers: its Maglev table, and what it does where a server holds too many requests.

The product's gateway asks Envoy for `MAGLEV` by the hash of a tenant's name (`builder/fleet/`), so which server that is
is known without asking Envoy. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from xxhash import xxh64_intdigest

from builder.placement.fleet.balance import kept_balance

TABLE_SIZE = 65_537
_ALL_BITS = (1 << 64) - 1
_MOST_ATTEMPTS = 100
"""As the route's `host_selection_retry_max_attempts`."""


@lru_cache(maxsize=64)
def maglev_table(names: tuple[str, ...]) -> tuple[int, ...]:
    """Deal the entries to servers of equal weight, by their names; returns the index of each entry's server."""
    order = sorted(range(len(names)), key=names.__getitem__)
    entries = [xxh64_intdigest(names[index].encode()) % TABLE_SIZE for index in order]
    skips = [xxh64_intdigest(names[index].encode(), 1) % (TABLE_SIZE - 1) + 1 for index in order]
    table: list[int | None] = [None] * TABLE_SIZE
    filled = 0
    while filled < TABLE_SIZE:
        for turn, index in enumerate(order[: TABLE_SIZE - filled]):
            entry = entries[turn]
            while table[entry] is not None:
                entry = (entry + skips[turn]) % TABLE_SIZE
            table[entry] = index
            entries[turn] = (entry + skips[turn]) % TABLE_SIZE
        filled += len(order)
    return tuple(index for index in table if index is not None)


class Deal:
    """Which of some servers a request goes to.

    Args:
        names: Of all servers.
        among: Indices of those that are asked.
        balance: Open requests of a server over the mean of all, in percent, beyond which another one is asked; 0 for
            without such a bound.
    """

    def __init__(self, names: Sequence[str], among: Sequence[int], balance: int) -> None:
        self._among = list(among)
        self._num_servers = len(names)
        self._balance = kept_balance(balance, len(names))
        self._table = maglev_table(tuple(names[index] for index in among))
        self._hashes: dict[str, int] = {}
        self._firsts: dict[str, int] = {}
        self._others: dict[str, list[int]] = {}
        self._twister = np.random.RandomState()
        """Seeded anew for each tenant: to make another one takes longer than that."""

    def __len__(self) -> int:
        return len(self._among)

    def server_of(self, tenant: str, num_open: Sequence[int]) -> int:
        """Return the server of a tenant's request.

        Args:
            tenant: Who asks.
            num_open: Requests that each server holds; a lost one holds none.
        """
        first = self._firsts.get(tenant)
        if first is None:
            first = self._firsts[tenant] = self._entry(self._hash(tenant))
        return self._bounded(tenant, first, num_open)

    def other_server_of(self, tenant: str, num_open: Sequence[int], tried: int) -> int:
        """Return the server of a request that another one has lost; the same again only where there is no other."""
        if self._num_servers == 2:  # which are asked in turn then, whatever they hold
            return next((index for index in self._among if index != tried), tried)
        server = self.server_of(tenant, num_open)
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            if server != tried:
                break
            mutated = self._hash(tenant) ^ (_ALL_BITS - attempt + 1)
            server = self._bounded(tenant, self._entry(mutated), num_open)
        return server

    def _entry(self, hashed: int) -> int:
        return self._among[self._table[hashed % TABLE_SIZE]]

    def _hash(self, tenant: str) -> int:
        known = self._hashes.get(tenant)
        if known is None:
            known = self._hashes[tenant] = xxh64_intdigest(tenant.encode())
        return known

    def _bounded(self, tenant: str, first: int, num_open: Sequence[int]) -> int:
        if not self._balance or len(self._among) == 1:
            return first
        among = self._among
        total = sum(num_open) if len(among) == len(num_open) else sum([num_open[index] for index in among])
        slots = max(1, -(-(((total + 1) * self._balance + 99) // 100) // len(among)))
        if num_open[first] <= slots:
            return first
        chosen = first
        for index in self._others_of(tenant):
            if index == first:
                continue
            if num_open[index] <= slots:
                return index
            if num_open[index] < num_open[chosen]:
                chosen = index
        return chosen

    def _others_of(self, tenant: str) -> list[int]:
        """Return the servers in the order in which they are tried where the first one holds too many."""
        known = self._others.get(tenant)
        if known is None:
            known = self._others[tenant] = _shuffled(self._among, self._hash(tenant), self._twister)
        return known


def _shuffled(servers: Collection[int], seed: int, twister: np.random.RandomState) -> list[int]:
    """Shuffle as Envoy does, with the Mersenne twister of a seed of 32 bits."""
    shuffled, count = list(servers), len(servers)
    twister.seed(seed & 0xFFFFFFFF)
    draws = iter(np.frombuffer(twister.bytes(16 * count + 64), "<u4").tolist())
    for index in range(count):
        left = count - index
        step = (1 << 32) // left
        offset = next(draw // step for draw in draws if draw // step < left)
        shuffled[index], shuffled[index + offset] = shuffled[index + offset], shuffled[index]
    return shuffled
