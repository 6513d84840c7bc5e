"""A slow, obvious table and chain to compare with: Python dicts of id tuples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backends.plot import Store, Table, TableSpec, TableWriter, pack
from backends.plot.arrays import Keys

FINGERPRINT = "0123456789abcdef"

Fragment = tuple[int, ...]
"""As many ids as the table's n; empty slots hold 0."""
Vectors = npt.NDArray[np.float16]


@dataclass
class ReferenceTable:
    spec: TableSpec
    stores: dict[Store, dict[Fragment, Vectors]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stores = {store: {} for store in self.spec.stores}

    def write(self, target: Path) -> Table:
        with TableWriter(target, self.spec) as writer:
            for store, entries in self.stores.items():
                if entries:
                    writer.append(store, store_keys(store, list(entries)), np.stack(list(entries.values())))
            writer.finish({"made for": "tests"})
        return Table.open(target, self.spec.root_fingerprint)


def store_keys(store: Store, fragments: Sequence[Fragment]) -> Keys:
    ids = np.array(fragments, np.int64).reshape(len(fragments), -1)
    n = ids.shape[1]
    if store is Store.UNI:
        return ids[:, n // 2].astype(np.uint64)
    if n == 2:
        return pack(np.column_stack([ids, np.zeros_like(ids[:, 0])]))
    return pack(ids if store is Store.PENTA else ids[:, n // 2 - 1 : n // 2 + 2])


def random_table(
    rng: np.random.Generator,
    name: str,
    parent: str | None,
    whole: int,
    shorter: int = 0,
    vocab_size: int = 12,
    hidden_size: int = 8,
    complete: bool = False,
    n: int = 3,
) -> ReferenceTable:
    """A table of up to `whole` fragments of all `n` ids and up to `shorter` of every shorter kind."""
    table = ReferenceTable(TableSpec(name, FINGERPRINT, hidden_size, vocab_size, parent, n))
    for store in table.spec.stores[:-1]:
        for _ in range(whole if store is table.spec.main else shorter):
            ids = rng.integers(0, vocab_size, n)
            ids[n // 2] = rng.integers(1, vocab_size)
            table.stores[store][cut(store, ids.tolist())] = random_vectors(rng, store, hidden_size)
    if complete:
        for token_id in range(vocab_size):
            fragment = cut(Store.UNI, [token_id] * n)
            table.stores[Store.UNI][fragment] = random_vectors(rng, Store.UNI, hidden_size)
    return table


def random_vectors(rng: np.random.Generator, store: Store, hidden_size: int) -> Vectors:
    return rng.standard_normal((store.vectors, hidden_size)).astype(np.float16)


def cut(store: Store, fragment: Sequence[int]) -> Fragment:
    """The fragment with the slots emptied that the store does not have."""
    kept = {
        Store.PENTA: (-2, -1, 0, 1, 2),
        Store.TRI: (-1, 0, 1),
        Store.LEFT_BI: (-1, 0),
        Store.BI: (0, 1),
        Store.UNI: (0,),
    }[store]
    centre = len(fragment) // 2
    return tuple(token_id if slot - centre in kept else 0 for slot, token_id in enumerate(fragment))


def resolve(tables: Sequence[ReferenceTable], fragment: Fragment) -> tuple[str, Vectors]:
    """The level's name and all slots of one fragment."""
    spec = tables[0].spec
    for store in spec.stores:
        for table in tables:
            found = table.stores[store].get(cut(store, fragment))
            if found is not None:
                slots = np.zeros((spec.n, spec.hidden_size), np.float16)
                slots[store.slots(spec.n)] = found
                return level_name(table, store, tables[-1]), slots
    raise KeyError(fragment)


def level_name(table: ReferenceTable, store: Store, root: ReferenceTable) -> str:
    if store is table.spec.main:
        return table.spec.name
    return store.value if table is root else f"{table.spec.name}/{store.value}"


def cut_row(row: Sequence[int], n: int) -> list[Fragment]:
    before, after = n // 2, n - 1 - n // 2
    padded = [0] * before + list(row) + [0] * after
    return [tuple(padded[i : i + n]) for i in range(len(row))]


def lookup(
    tables: Sequence[ReferenceTable], rows: Sequence[Sequence[int]]
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Level names and aggregated states of all tokens, one token after another."""
    n, hidden_size = tables[0].spec.n, tables[0].spec.hidden_size
    names: list[str] = []
    states: list[npt.NDArray[np.float32]] = []
    for row in rows:
        answers = [resolve(tables, fragment) for fragment in cut_row(row, n)]
        for i, (name, _) in enumerate(answers):
            state = np.zeros(hidden_size, np.float32)
            for slot in range(n):
                holder = i + n // 2 - slot  # the fragment that has token i in this slot
                if 0 <= holder < len(row):
                    state += answers[holder][1][slot]
            names.append(name)
            states.append(state)
    return names, np.array(states, np.float32).reshape(len(names), hidden_size)


def flat(rows: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    token_ids = np.array([token_id for row in rows for token_id in row], np.int64)
    return token_ids, np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
