"""A slow, obvious table and chain to compare with: Python dicts of id tuples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backends.plot import Store, Table, TableSpec, TableWriter, pack

FINGERPRINT = "0123456789abcdef"

Fragment = tuple[int, ...]
Vectors = npt.NDArray[np.float16]


@dataclass
class ReferenceTable:
    spec: TableSpec
    stores: dict[Store, dict[Fragment, Vectors]] = field(default_factory=lambda: {store: {} for store in Store})

    def write(self, target: Path) -> Table:
        with TableWriter(target, self.spec) as writer:
            for store, entries in self.stores.items():
                if entries:
                    writer.append(store, store_keys(store, list(entries)), np.stack(list(entries.values())))
            writer.finish({"made for": "tests"})
        return Table.open(target, self.spec.root_fingerprint)


def store_keys(store: Store, fragments: Sequence[Fragment]) -> npt.NDArray[np.uint64]:
    if store is Store.UNI:
        return np.array([centre for _, centre, _ in fragments], np.uint64)
    return pack(np.array(fragments, np.int64).reshape(-1, 3))


def random_table(
    rng: np.random.Generator,
    name: str,
    parent: str | None,
    trigrams: int,
    bigrams: int = 0,
    vocab_size: int = 12,
    hidden_size: int = 8,
    complete: bool = False,
) -> ReferenceTable:
    table = ReferenceTable(TableSpec(name, FINGERPRINT, hidden_size, vocab_size, parent))

    def vectors(store: Store) -> Vectors:
        return rng.standard_normal((store.vectors, hidden_size)).astype(np.float16)

    for _ in range(trigrams):
        left, right = rng.integers(0, vocab_size, 2).tolist()
        table.stores[Store.TRI][left, int(rng.integers(1, vocab_size)), right] = vectors(Store.TRI)
    for _ in range(bigrams):
        centre, right = int(rng.integers(1, vocab_size)), int(rng.integers(0, vocab_size))
        table.stores[Store.BI][0, centre, right] = vectors(Store.BI)
    if complete:
        table.stores[Store.UNI] = {(0, token_id, 0): vectors(Store.UNI) for token_id in range(vocab_size)}
    return table


def resolve(tables: Sequence[ReferenceTable], fragment: Fragment) -> tuple[str, Vectors]:
    """The level's name and the three slots of one fragment."""
    _, centre, right = fragment
    hidden_size = tables[0].spec.hidden_size
    slots = np.zeros((3, hidden_size), np.float16)
    for table in tables:
        if fragment in table.stores[Store.TRI]:
            return table.spec.name, table.stores[Store.TRI][fragment]
    for table in tables:
        if (0, centre, right) in table.stores[Store.BI]:
            slots[1:] = table.stores[Store.BI][0, centre, right]
            return "bi" if table is tables[-1] else f"{table.spec.name}/bi", slots
    slots[1] = tables[-1].stores[Store.UNI][0, centre, 0]
    return "uni", slots


def lookup(
    tables: Sequence[ReferenceTable], rows: Sequence[Sequence[int]]
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Level names and aggregated states of all tokens, one token after another."""
    names: list[str] = []
    states: list[npt.NDArray[np.float32]] = []
    for row in rows:
        padded = [0, *row, 0]
        answers = [resolve(tables, tuple(padded[i : i + 3])) for i in range(len(row))]
        for i, (name, slots) in enumerate(answers):
            state = slots[1].astype(np.float32)
            if i > 0:
                state = state + answers[i - 1][1][2].astype(np.float32)
            if i + 1 < len(row):
                state = state + answers[i + 1][1][0].astype(np.float32)
            names.append(name)
            states.append(state)
    return names, np.array(states, np.float32).reshape(len(names), tables[0].spec.hidden_size)


def flat(rows: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    token_ids = np.array([token_id for row in rows for token_id in row], np.int64)
    return token_ids, np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
