from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plot_reference import ReferenceTable, flat, lookup, random_table, store_keys

from backends.errors import InvalidArgumentError
from backends.plot import PlotChain
from backends.plot.arrays import Keys
from backends.plot.askers import SEVERAL, Fetched


class Dictionary:
    """A supplier that knows some fragments, and notes what it was asked for."""

    def __init__(self, name: str, table: ReferenceTable) -> None:
        self.name = name
        main = table.spec.main
        entries = table.stores[main]
        keys = store_keys(main, list(entries))
        self._vectors = {key.tobytes(): vectors for key, vectors in zip(keys, entries.values(), strict=True)}
        self.asked = 0

    def fetch(self, keys: Keys) -> Fetched:
        self.asked += keys.size
        found = np.array([key.tobytes() in self._vectors for key in keys], np.bool_)
        vectors = [self._vectors[key.tobytes()].reshape(-1) for key in keys[found]]
        askers = np.full(len(vectors), SEVERAL, np.uint32)
        return Fetched(np.array(vectors, np.float16).reshape(len(vectors), -1), found, askers)


def disjoint(table: ReferenceTable, others: list[ReferenceTable]) -> ReferenceTable:
    for other in others:
        for fragment in other.stores[table.spec.main]:
            table.stores[table.spec.main].pop(fragment, None)
    return table


@pytest.mark.parametrize("n", [2, 3, 5])
def test_suppliers_answer_after_the_tables_and_before_shorter_fragments(
    tmp_path: Path, rng: np.random.Generator, n: int
) -> None:
    whole = {2: 30, 3: 300, 5: 6_000}[n]
    domain = random_table(rng, "farm@1", "general@1", whole, shorter=20, n=n)
    root = random_table(rng, "general@1", None, whole, shorter=20, complete=True, n=n)
    first = disjoint(random_table(rng, "farm@1/overlay", "general@1", whole, n=n), [domain, root])
    second = disjoint(random_table(rng, "farm@1/computed", "general@1", whole, n=n), [domain, root, first])
    suppliers = [Dictionary("farm@1/overlay", first), Dictionary("farm@1/computed", second)]
    tables = [table.write(tmp_path / table.spec.name) for table in (domain, root)]
    chain = PlotChain(tables, suppliers)
    assert chain.level_names[:4] == ("farm@1", "general@1", "farm@1/overlay", "farm@1/computed")
    rows = [rng.integers(1, 12, length).tolist() for length in rng.integers(0, 30, 300).tolist()]
    # To the reference they are further tables between the domain and the root.
    names, states = lookup([domain, first, second, root], rows)
    found = chain.lookup(*flat(rows))
    assert [chain.level_names[level] for level in found.levels] == names
    assert {"farm@1/overlay", "farm@1/computed"} <= set(names)
    np.testing.assert_allclose(found.states.numpy(), states, rtol=0, atol=1e-6)
    assert suppliers[1].asked == suppliers[0].asked - names.count("farm@1/overlay")


def test_a_supplier_that_answers_everything_leaves_nothing_to_shorter_fragments(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    root = random_table(rng, "general@1", None, 0, shorter=20, complete=True)
    known = random_table(rng, "general@1/overlay", None, 20_000)
    rows = [rng.integers(1, 12, 20).tolist() for _ in range(50)]
    chain = PlotChain([root.write(tmp_path / "general@1")], [Dictionary("general@1/overlay", known)])
    found = chain.lookup(*flat(rows))
    assert {chain.level_names[level] for level in found.levels} == {"general@1/overlay"}
    np.testing.assert_allclose(found.states.numpy(), lookup([known, root], rows)[1], rtol=0, atol=1e-6)


def test_ids_that_are_no_tokens_are_refused_before_a_supplier_is_asked(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    root = random_table(rng, "general@1", None, 20, complete=True)
    supplier = Dictionary("general@1/computed", random_table(rng, "general@1/computed", None, 20))
    chain = PlotChain([root.write(tmp_path / "general@1")], [supplier])
    wrong = root.spec.vocab_size
    with pytest.raises(InvalidArgumentError, match=f"token id {wrong} is outside the root's vocabulary of {wrong}"):
        chain.lookup(*flat([[1, 2, 3], [1, wrong, 2]]))
    assert supplier.asked == 0
