"""Tables from a domain down to its root, asked one after another for every fragment of a batch.

What no table holds, others may supply before a shorter fragment answers: a `Supplier` is one more level.

Usage:
    chain = PlotChain([medicine, general])
    found = chain.lookup(token_ids, row_offsets)
    found.states, chain.statistics(found.levels)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from backends.errors import CorruptFileError, FingerprintMismatchError, InvalidArgumentError
from backends.plot.aggregation import aggregate
from backends.plot.arrays import Float16Array, Found, Ids, Keys, Levels, Rows
from backends.plot.askers import Askers, Fetched
from backends.plot.header import Store
from backends.plot.keys import fragment_keys
from backends.plot.statistics import HitStatistics
from backends.plot.table import StoreReader, Table

_MAX_LEVELS = 256


class Supplier(Protocol):
    """Whole fragments from elsewhere than a table."""

    @property
    def name(self) -> str: ...

    def fetch(self, keys: Keys) -> Fetched:
        """Shape: keys [K]."""
        ...


class Supplied:
    """A supplier's vectors for one batch, read like a store, and who had asked for each."""

    def __init__(self, supplier: Supplier, store: Store) -> None:
        self.store = store
        self.askers: Askers = np.empty(0, np.uint32)
        self._supplier = supplier
        self._vectors: Float16Array = np.empty((0, 0), np.float16)

    def find(self, keys: Keys) -> tuple[Rows, Found]:
        self._vectors, found, self.askers = self._supplier.fetch(keys)
        return np.cumsum(found) - 1, found

    def read_into(self, rows: Rows, out: Float16Array) -> None:
        self._vectors.take(rows, axis=0, out=out, mode="clip")


class Computed:
    """Vectors that the caller computes for one batch, read like a store; none before they are given."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.vectors: Float16Array = np.empty((0, 0), np.float16)

    def read_into(self, rows: Rows, out: Float16Array) -> None:
        self.vectors.take(rows, axis=0, out=out, mode="clip")


Level = tuple[Table | Supplier, Store]
Reader = StoreReader | Supplied
AnyReader = Reader | Computed


@dataclass(frozen=True)
class Resolved:
    """Per token the level that has its fragment, and the fragment's row there; the levels are held for this batch.

    Shape: levels [T] uint8, rows [T] int64
    """

    levels: Levels
    rows: Rows
    readers: Sequence[AnyReader]


@dataclass(frozen=True)
class PlotLookup:
    """Per token the level that answered and the aggregated state.

    Shape: levels [T] uint8, states [T, hidden] float32
    """

    levels: Levels
    states: torch.Tensor


class PendingLookup:
    """A batch that tables and suppliers have answered as far as they hold its whole fragments.

    Attributes:
        keys: The keys of all tokens' whole fragments.
        missing: The tokens whose whole fragment is nowhere; `supply` gives the vectors of some, and shorter fragments
            answer for the others.

    Shape: keys [T], missing [M]
    """

    def __init__(self, whole: Sequence[Reader], computed: Computed, shorter: Sequence[Reader], keys: Keys) -> None:
        self.keys = keys
        self.missing: Rows = np.arange(keys.size)
        self._levels: Levels = np.empty(keys.size, np.uint8)
        self._rows: Rows = np.empty(keys.size, np.int64)
        self._computed, self._shorter = computed, shorter
        self._readers = [*whole, *shorter, computed]
        self._ask(whole, first_level=0)
        self._num_whole = len(whole)

    def supplied(self) -> tuple[Rows, Askers]:
        """Return the tokens that suppliers have answered, and who had asked for their fragments until then.

        Called before anything else is supplied.

        Shape: [S], [S]
        """
        is_answered = np.ones(self.keys.size, np.bool_)
        is_answered[self.missing] = False
        tokens, askers = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
        for level, reader in enumerate(self._readers):
            if isinstance(reader, Supplied):
                tokens.append(np.flatnonzero(is_answered & (self._levels == level)))
                askers.append(reader.askers[self._rows[tokens[-1]]])
        return np.concatenate(tokens), np.concatenate(askers)

    def supply(self, vectors: Float16Array, rows: Rows, found: Found) -> None:
        """Answer those missing tokens that were `found` with their `rows` of `vectors`.

        Shape: vectors [V, n * hidden], rows and found [M]
        """
        self._computed.vectors = vectors
        self._note(len(self._readers) - 1, rows, found)

    def finish(self) -> Resolved:
        """Let shorter fragments answer what is still missing; the root's uni-grams have all the rest."""
        self._ask(self._shorter, first_level=self._num_whole)
        return Resolved(self._levels, self._rows, self._readers)

    def _ask(self, readers: Sequence[Reader], first_level: int) -> None:
        """Ask level after level for what the ones before did not have."""
        for level, reader in enumerate(readers, start=first_level):
            if not self.missing.size:
                break
            keys = self.keys if self.missing.size == self.keys.size else self.keys[self.missing]
            self._note(level, *reader.find(reader.store.shorten(keys)))

    def _note(self, level: int, rows: Rows, found: Found) -> None:
        hits = self.missing[found]
        self._levels[hits] = level
        self._rows[hits] = rows[found]
        self.missing = self.missing[~found]


class PlotChain:
    """One table per step from a domain to its root.

    Levels in order: the whole fragments of every table, those of the suppliers, then the shorter ones of every table
    that has some (each from the domain to the root), and the uni-grams of the root, which are complete, so that every
    fragment resolves. Where the caller `computes` whole fragments, these are one more level.
    """

    def __init__(self, tables: Sequence[Table], suppliers: Sequence[Supplier] = (), computes: bool = False) -> None:
        _check_chain(tables)
        self._hidden_size = tables[0].spec.hidden_size
        self._vocab_size = tables[0].spec.vocab_size
        self._shape = tables[0].spec.shape
        self._main = tables[-1].spec.main
        self._whole, self._shorter = _whole_levels(tables, suppliers), _shorter_levels(tables)
        if len(self._whole) + len(self._shorter) >= _MAX_LEVELS:
            raise InvalidArgumentError(f"a chain has at most {_MAX_LEVELS - 1} levels")
        computed = [f"{tables[0].name}/computed"] if computes else []
        names = (_level_name(level, tables[-1]) for level in (*self._whole, *self._shorter))
        self.level_names = (*names, *computed)

    def lookup(self, token_ids: Ids, row_offsets: Ids) -> PlotLookup:
        """Shape: token_ids [T], row_offsets [R + 1]."""
        resolved = self.resolve(token_ids, row_offsets)
        return PlotLookup(resolved.levels, self.states(resolved, row_offsets))

    def resolve(self, token_ids: Ids, row_offsets: Ids) -> Resolved:
        """Find the level that answers each fragment, and the row there, without reading vectors.

        Shape: token_ids [T], row_offsets [R + 1] -> [T]
        """
        return self.begin(token_ids, row_offsets).finish()

    def begin(self, token_ids: Ids, row_offsets: Ids) -> PendingLookup:
        """Find the whole fragments that tables and suppliers hold; the caller may compute the others.

        Shape: token_ids [T], row_offsets [R + 1]
        """
        keys = fragment_keys(token_ids, row_offsets, self._shape)
        _check_vocabulary(token_ids, self._vocab_size)
        return PendingLookup(_readers(self._whole), Computed(self._main), _readers(self._shorter), keys)

    def states(self, resolved: Resolved, row_offsets: Ids) -> torch.Tensor:
        """The aggregated states of resolved fragments.

        Shape: resolved [T], row_offsets [R + 1] -> [T, hidden] float32
        """

        def gather(start: int, end: int, out: Float16Array) -> None:
            part = Resolved(resolved.levels[start:end], resolved.rows[start:end], resolved.readers)
            _gather(part, out, self._shape.n)

        return aggregate(gather, row_offsets, self._hidden_size, self._shape)

    def statistics(self, levels: Levels) -> HitStatistics:
        return HitStatistics.of(levels, self.level_names)

    def are_whole(self, levels: Levels) -> Found:
        """Which tokens got their whole fragment.

        Shape: [T] -> [T]
        """
        num_whole = len(self._whole)
        whole: Found = (levels < num_whole) | (levels == num_whole + len(self._shorter))
        return whole


def _readers(levels: Sequence[Level]) -> list[Reader]:
    """Return readers of levels for one batch; they keep a table readable that is closed meanwhile."""
    return [source.store(store) if isinstance(source, Table) else Supplied(source, store) for source, store in levels]


def _check_chain(tables: Sequence[Table]) -> None:
    if not tables or Store.UNI not in tables[-1]:
        raise InvalidArgumentError("a chain needs tables, the last of which is a root's with all uni-grams")
    for child, parent in pairwise(tables):
        _check_link(child, parent)


def _check_link(child: Table, parent: Table) -> None:
    """Raise errors of files: clients learn that a file is damaged, only operators see the names of the tables."""
    if child.spec.root_fingerprint != parent.spec.root_fingerprint:
        raise FingerprintMismatchError(
            f"table {child.name} was made for the root with fingerprint {child.spec.root_fingerprint}, "
            f"table {parent.name} for {parent.spec.root_fingerprint}"
        )
    if child.spec.parent != parent.name:
        raise CorruptFileError(f"the parent of table {child.name} is {child.spec.parent}, not {parent.name}")
    if (child.spec.hidden_size, child.spec.n) != (parent.spec.hidden_size, parent.spec.n):
        raise CorruptFileError(f"tables {child.name} and {parent.name} differ in hidden size or in n")


def _whole_levels(tables: Sequence[Table], suppliers: Sequence[Supplier]) -> list[Level]:
    main = tables[-1].spec.main
    levels: list[Level] = [(table, main) for table in tables if main in table]
    return [*levels, *((supplier, main) for supplier in suppliers)]


def _shorter_levels(tables: Sequence[Table]) -> list[Level]:
    _, *shorter, last = tables[-1].spec.stores
    levels: list[Level] = [(table, store) for store in shorter for table in tables if store in table]
    return [*levels, (tables[-1], last)]


def _level_name(level: Level, root: Table) -> str:
    source, store = level
    if store is root.spec.main:
        return source.name
    return store.value if source is root else f"{source.name}/{store.value}"


def _check_vocabulary(token_ids: Ids, vocab_size: int) -> None:
    """Reject ids that are no tokens before they reach a table or the lower layers."""
    highest = int(token_ids.max(initial=0))
    if highest >= vocab_size:
        raise InvalidArgumentError(f"token id {highest} is outside the root's vocabulary of {vocab_size}")


def _gather(resolved: Resolved, out: Float16Array, n: int) -> None:
    """Copy the vectors of every token's fragment into its slots.

    Shape: resolved [T] -> out [T, n * hidden]
    """
    readers = resolved.readers
    counts = np.bincount(resolved.levels, minlength=len(readers)).tolist()
    whole = (level for level, reader in enumerate(readers) if reader.store.vectors == n)
    main = max(whole, key=counts.__getitem__, default=None)
    if main is not None and counts[main]:
        # All tokens at once, directly into the output; tokens of other levels read any row and are overwritten below.
        readers[main].read_into(np.where(resolved.levels == main, resolved.rows, 0), out)
    for level, reader in enumerate(readers):
        if level != main and counts[level]:
            _gather_some(reader, np.flatnonzero(resolved.levels == level), resolved.rows, out, n)


def _gather_some(reader: AnyReader, tokens: Rows, rows: Rows, out: Float16Array, n: int) -> None:
    slots = out.reshape(rows.size, n, -1)
    vectors = np.empty((tokens.size, reader.store.vectors, slots.shape[2]), np.float16)
    reader.read_into(rows[tokens], vectors.reshape(tokens.size, -1))
    if reader.store.vectors < n:
        slots[tokens] = 0
    slots[tokens, reader.store.slots(n)] = vectors
