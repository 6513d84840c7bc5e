"""Tables from a domain down to its root, asked one after another for every fragment of a batch.

Usage:
    chain = PlotChain([medicine, general])
    found = chain.lookup(token_ids, row_offsets)
    found.states, found.levels, chain.statistics(found.levels)
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
        readers = self._readers()
        levels, rows = _resolve(readers, fragment_keys(token_ids, row_offsets))

        def gather(start: int, end: int, out: Halves) -> None:
            _gather(readers, levels[start:end], rows[start:end], out)

        return PlotLookup(levels, aggregate(gather, row_offsets, self._hidden_size))

    def levels(self, token_ids: Ids, row_offsets: Ids) -> Levels:
        """Only which level answers each fragment; an index into `level_names`.

        Shape: token_ids [T], row_offsets [R + 1] -> [T]
        """
        return _resolve(self._readers(), fragment_keys(token_ids, row_offsets))[0]

    def fragment_states(self, token_ids: Ids, row_offsets: Ids) -> Halves:
        """The gated states g before aggregation; slots that a fallback lacks are zero.

        Shape: token_ids [T], row_offsets [R + 1] -> [T, 3, hidden]
        """
        readers = self._readers()
        levels, rows = _resolve(readers, fragment_keys(token_ids, row_offsets))
        out = np.empty((levels.size, _SLOTS * self._hidden_size), np.float16)
        _gather(readers, levels, rows, out)
        return out.reshape(-1, _SLOTS, self._hidden_size)

    def statistics(self, levels: Levels) -> HitStatistics:
        return HitStatistics.of(levels, self.level_names)

    def _readers(self) -> list[StoreReader]:
        """The stores of all levels, held for one lookup, so that a table closed meanwhile stays readable."""
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


def _resolve(readers: Sequence[StoreReader], keys: Keys) -> tuple[Levels, Rows]:
    """The first level that has each fragment, and its row there.

    Shape: [T] -> [T], [T]
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
            return levels, rows
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


def _gather(readers: Sequence[StoreReader], levels: Levels, rows: Rows, out: Halves) -> None:
    """Copy the vectors of every token's fragment into its three slots.

    Shape: levels [T], rows [T] -> out [T, 3 * hidden]
    """
    for number, count in enumerate(np.bincount(levels).tolist()):
        if count == levels.size and readers[number].store is Store.TRI:
            readers[number].read_into(rows, out)
        elif count:
            _gather_some(readers[number], np.flatnonzero(levels == number), rows, out)


def _gather_some(reader: StoreReader, tokens: Rows, rows: Rows, out: Halves) -> None:
    slots = out.reshape(rows.size, _SLOTS, -1)
    vectors = np.empty((tokens.size, reader.store.vectors, slots.shape[2]), np.float16)
    reader.read_into(rows[tokens], vectors.reshape(tokens.size, -1))
    if reader.store is not Store.TRI:
        slots[tokens] = 0
    slots[tokens, reader.store.slots] = vectors
