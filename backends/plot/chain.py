"""Tables from a domain down to its root, asked one after another for every fragment of a batch.

Usage:
    chain = PlotChain([medicine, general])
    found = chain.lookup(token_ids, row_offsets)
    found.states, chain.statistics(found.levels)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from backends.errors import FingerprintMismatchError, InvalidArgumentError
from backends.plot.aggregation import aggregate
from backends.plot.arrays import Halves, Ids, Keys, Levels, Rows
from backends.plot.header import Store
from backends.plot.keys import fragment_keys, right_bigram, unigram
from backends.plot.statistics import HitStatistics
from backends.plot.table import StoreReader, Table

_MAX_LEVELS = 256
_SLOTS = Store.TRI.vectors


@dataclass(frozen=True)
class Resolved:
    """Per token the level that has its fragment, and the fragment's row there.

    Shape: levels [T] uint8, rows [T] int64
    """

    levels: Levels
    rows: Rows


@dataclass(frozen=True)
class PlotLookup:
    """Per token the level that answered and the aggregated state.

    Shape: levels [T] uint8, states [T, hidden] float32
    """

    levels: Levels
    states: torch.Tensor


class PlotChain:
    """One table per step from a domain to its root.

    Levels in order: the tri-grams of every table, the bi-grams of every table that has some (each from the domain to
    the root), and the uni-grams of the root, which are complete, so that every fragment resolves.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        _check_chain(tables)
        self._hidden_size = tables[0].spec.hidden_size
        self._levels = _levels(tables)
        self.level_names = tuple(_level_name(table, store, tables[-1]) for table, store in self._levels)

    def lookup(self, token_ids: Ids, row_offsets: Ids) -> PlotLookup:
        """Shape: token_ids [T], row_offsets [R + 1]."""
        resolved = self.resolve(token_ids, row_offsets)
        return PlotLookup(resolved.levels, self.states(resolved, row_offsets))

    def resolve(self, token_ids: Ids, row_offsets: Ids) -> Resolved:
        """Only which level answers each fragment, and where; reads no vectors.

        Shape: token_ids [T], row_offsets [R + 1] -> [T]
        """
        return _resolve(self._readers(), fragment_keys(token_ids, row_offsets))

    def states(self, resolved: Resolved, row_offsets: Ids) -> torch.Tensor:
        """The aggregated states of resolved fragments.

        Shape: resolved [T], row_offsets [R + 1] -> [T, hidden] float32
        """
        readers = self._readers()

        def gather(start: int, end: int, out: Halves) -> None:
            _gather(readers, Resolved(resolved.levels[start:end], resolved.rows[start:end]), out)

        return aggregate(gather, row_offsets, self._hidden_size)

    def fragment_states(self, resolved: Resolved) -> Halves:
        """The gated states g before aggregation; slots that a fallback lacks are zero.

        Shape: resolved [T] -> [T, 3, hidden]
        """
        out = np.empty((resolved.levels.size, _SLOTS * self._hidden_size), np.float16)
        _gather(self._readers(), resolved, out)
        return out.reshape(-1, _SLOTS, self._hidden_size)

    def statistics(self, levels: Levels) -> HitStatistics:
        return HitStatistics.of(levels, self.level_names)

    def _readers(self) -> list[StoreReader]:
        """The stores of all levels, held for one step, so that a table closed meanwhile stays readable."""
        return [table.store(store) for table, store in self._levels]


def _check_chain(tables: Sequence[Table]) -> None:
    if not tables or Store.UNI not in tables[-1]:
        raise InvalidArgumentError("a chain needs tables, the last of which is a root's with all uni-grams")
    for child, parent in pairwise(tables):
        _check_link(child, parent)


def _check_link(child: Table, parent: Table) -> None:
    if child.spec.root_fingerprint != parent.spec.root_fingerprint:
        raise FingerprintMismatchError(
            f"table {child.name} was made for the root with fingerprint {child.spec.root_fingerprint}, "
            f"table {parent.name} for {parent.spec.root_fingerprint}"
        )
    if child.spec.parent != parent.name:
        raise InvalidArgumentError(f"the parent of table {child.name} is {child.spec.parent}, not {parent.name}")
    if child.spec.hidden_size != parent.spec.hidden_size:
        raise InvalidArgumentError(f"tables {child.name} and {parent.name} differ in hidden size")


def _levels(tables: Sequence[Table]) -> list[tuple[Table, Store]]:
    levels = [(table, store) for store in (Store.TRI, Store.BI) for table in tables if store in table]
    levels.append((tables[-1], Store.UNI))
    if len(levels) > _MAX_LEVELS:
        raise InvalidArgumentError(f"a chain has at most {_MAX_LEVELS} levels, not {len(levels)}")
    return levels


def _level_name(table: Table, store: Store, root: Table) -> str:
    if store is Store.TRI:
        return table.name
    return store.value if table is root else f"{table.name}/{store.value}"


def _resolve(readers: Sequence[StoreReader], keys: Keys) -> Resolved:
    """Ask level after level for what the ones before did not have.

    Shape: [T] -> [T]
    """
    levels = np.empty(keys.size, np.uint8)
    rows = np.empty(keys.size, np.int64)
    pending = np.arange(keys.size)
    for number, reader in enumerate(readers):
        candidates, found = reader.find(_shortened(keys if pending.size == keys.size else keys[pending], reader.store))
        hits = pending[found]
        levels[hits] = number
        rows[hits] = candidates[found]
        pending = pending[~found]
        if not pending.size:
            return Resolved(levels, rows)
    token_id = int(unigram(keys[pending[:1]])[0])
    raise InvalidArgumentError(f"token id {token_id} is outside the root's vocabulary of {readers[-1].entries}")


def _shortened(keys: Keys, store: Store) -> Keys:
    match store:
        case Store.TRI:
            return keys
        case Store.BI:
            return right_bigram(keys)
        case Store.UNI:
            return unigram(keys).view(np.uint64)


def _gather(readers: Sequence[StoreReader], resolved: Resolved, out: Halves) -> None:
    """Copy the vectors of every token's fragment into its three slots.

    Shape: resolved [T] -> out [T, 3 * hidden]
    """
    counts = np.bincount(resolved.levels, minlength=len(readers)).tolist()
    trigrams = (level for level, reader in enumerate(readers) if reader.store is Store.TRI)
    main = max(trigrams, key=counts.__getitem__, default=None)
    if main is not None and counts[main]:
        # All tokens at once, straight into place; those of other levels read any row here and are overwritten below.
        readers[main].read_into(np.where(resolved.levels == main, resolved.rows, 0), out)
    for level, reader in enumerate(readers):
        if level != main and counts[level]:
            _gather_some(reader, np.flatnonzero(resolved.levels == level), resolved.rows, out)


def _gather_some(reader: StoreReader, tokens: Rows, rows: Rows, out: Halves) -> None:
    slots = out.reshape(rows.size, _SLOTS, -1)
    vectors = np.empty((tokens.size, reader.store.vectors, slots.shape[2]), np.float16)
    reader.read_into(rows[tokens], vectors.reshape(tokens.size, -1))
    if reader.store is not Store.TRI:
        slots[tokens] = 0
    slots[tokens, reader.store.slots] = vectors
