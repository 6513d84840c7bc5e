from pathlib import Path

import numpy as np
import pytest
import torch
from plot_reference import FINGERPRINT, ReferenceTable, cut_row, flat, lookup, random_table

from backends.errors import CorruptFileError, FingerprintMismatchError, InvalidArgumentError, UnavailableError
from backends.plot import HitStatistics, PlotChain, Store, Table, TableSpec

LEVELS = {
    2: ("medicine@2", "science@1", "general@3", "uni"),
    3: ("medicine@2", "science@1", "general@3", "medicine@2/bi", "bi", "uni"),
    5: ("medicine@2", "science@1", "general@3", "medicine@2/tri", "tri", "medicine@2/bi", "bi", "uni"),
}


def three_tables(rng: np.random.Generator, n: int = 3) -> list[ReferenceTable]:
    whole = {2: 20, 3: 300, 5: 6_000}[n]
    return [
        random_table(rng, "medicine@2", "science@1", whole // 2, shorter=9, n=n),
        random_table(rng, "science@1", "general@3", whole, n=n),
        random_table(rng, "general@3", None, 2 * whole, shorter=60, complete=True, n=n),
    ]


def opened(tables: list[ReferenceTable], folder: Path) -> PlotChain:
    return PlotChain([table.write(folder / table.spec.name) for table in tables])


def random_rows(rng: np.random.Generator, rows: int, longest: int) -> list[list[int]]:
    return [rng.integers(1, 12, length).tolist() for length in rng.integers(0, longest, rows).tolist()]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_states_and_levels_equal_the_dictionary(tmp_path: Path, rng: np.random.Generator, n: int) -> None:
    tables = three_tables(rng, n)
    chain = opened(tables, tmp_path)
    assert chain.level_names == LEVELS[n]
    rows = [[3], *random_rows(rng, 400, 30), [], [4], *random_rows(rng, 300, 5), random_rows(rng, 1, 3000)[0], [5]]
    names, states = lookup(tables, rows)
    found = chain.lookup(*flat(rows))
    assert [chain.level_names[level] for level in found.levels] == names
    assert set(names) == set(chain.level_names)
    np.testing.assert_allclose(found.states.numpy(), states, rtol=0, atol=1e-6)
    resolved = chain.resolve(*flat(rows))
    assert np.array_equal(resolved.levels, found.levels)
    assert torch.equal(chain.states(resolved, flat(rows)[1]), found.states)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_nothing_leaks_across_rows(tmp_path: Path, rng: np.random.Generator, n: int) -> None:
    """Tables may hold anything in the outer slots of a border fragment; the rows stay apart all the same."""
    chain = opened(three_tables(rng, n), tmp_path)
    rows = [row for row in random_rows(rng, 300, 5) if row]
    together = chain.lookup(*flat(rows)).states.numpy()
    alone = np.concatenate([chain.lookup(*flat([row])).states.numpy() for row in rows])
    assert np.array_equal(together, alone)


def test_a_single_level_answers_everything(tmp_path: Path, rng: np.random.Generator) -> None:
    root = random_table(rng, "general@1", None, 20_000, complete=True)
    chain = opened([root], tmp_path)
    rows = random_rows(rng, 300, 40)
    names, states = lookup([root], rows)
    assert set(names) == {"general@1"}
    np.testing.assert_allclose(chain.lookup(*flat(rows)).states.numpy(), states, rtol=0, atol=1e-6)


def test_a_root_of_nothing_but_unigrams(tmp_path: Path, rng: np.random.Generator) -> None:
    root = random_table(rng, "general@1", None, 0, complete=True)
    chain = opened([root], tmp_path)
    rows = random_rows(rng, 50, 20)
    assert chain.level_names == ("uni",)
    assert np.array_equal(chain.lookup(*flat(rows)).states.numpy(), lookup([root], rows)[1])


@pytest.mark.parametrize("rows", [[], [[]], [[], [], []]])
def test_an_empty_batch_has_empty_answers(tmp_path: Path, rng: np.random.Generator, rows: list[list[int]]) -> None:
    found = opened(three_tables(rng), tmp_path).lookup(*flat(rows))
    assert found.levels.shape == (0,)
    assert found.states.shape == (0, 8)


def test_statistics_count_levels_and_add_up(tmp_path: Path, rng: np.random.Generator) -> None:
    tables = three_tables(rng)
    chain = opened(tables, tmp_path)
    total = HitStatistics()
    names: list[str] = []
    for _ in range(3):
        rows = random_rows(rng, 50, 20)
        names += lookup(tables, rows)[0]
        total += chain.statistics(chain.resolve(*flat(rows)).levels)
    assert total.counts == {name: names.count(name) for name in chain.level_names}
    assert total.total == len(names)
    assert sum(total.rates().values()) == pytest.approx(1)
    assert HitStatistics({"a": 1}) + HitStatistics({"b": 2, "a": 3}) == HitStatistics({"a": 4, "b": 2})


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    chain = opened(three_tables(rng), tmp_path)
    with pytest.raises(InvalidArgumentError, match="token id 4000 "):
        chain.lookup(*flat([[3, 4000, 2]]))


def test_a_table_of_another_root_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    root = random_table(rng, "general@1", None, 9, complete=True)
    other = random_table(rng, "medicine@1", "general@1", 9)
    other.spec = TableSpec("medicine@1", "feedbeef", 8, 12, "general@1")
    with pytest.raises(FingerprintMismatchError, match="feedbeef.*" + FINGERPRINT):
        opened([other, root], tmp_path)


def test_chains_that_do_not_end_in_a_root_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    tables = [table.write(tmp_path / table.spec.name) for table in three_tables(rng)]
    wrong_chains: list[list[Table]] = [[], tables[:2], [tables[0], tables[2]], tables[::-1]]
    for wrong in wrong_chains:
        with pytest.raises((InvalidArgumentError, CorruptFileError)):
            PlotChain(wrong)


def test_a_closed_table_is_unavailable(tmp_path: Path, rng: np.random.Generator) -> None:
    tables = [table.write(tmp_path / table.spec.name) for table in three_tables(rng)]
    chain = PlotChain(tables)
    tables[1].close()
    with pytest.raises(UnavailableError, match="science@1 is closed"):
        chain.lookup(*flat([[3, 4]]))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_ids_up_to_the_vocabularys_end(tmp_path: Path, rng: np.random.Generator, n: int) -> None:
    """Large ids keep apart: fragments that differ in one id, or have two exchanged, are not each other's."""
    vocab_size = 60_000
    root = random_table(rng, "general@1", None, 0, vocab_size=vocab_size, hidden_size=1, n=n)
    rows = [rng.integers(vocab_size - 40, vocab_size, 200).tolist() for _ in range(20)]
    fragments = sorted({fragment for row in rows for fragment in cut_row(row, n)})
    root.stores[root.spec.main] = {
        fragment: rng.standard_normal((n, 1)).astype(np.float16) for fragment in fragments[::2]
    }
    for token_id in range(vocab_size):
        root.stores[Store.UNI][(0,) * (n // 2) + (token_id,) + (0,) * (n - 1 - n // 2)] = np.ones((1, 1), np.float16)
    chain = opened([root], tmp_path)
    names, states = lookup([root], rows)
    found = chain.lookup(*flat(rows))
    assert [chain.level_names[level] for level in found.levels] == names
    assert set(names) == {"general@1", "uni"}
    np.testing.assert_allclose(found.states.numpy(), states, rtol=0, atol=1e-5)


def test_tables_of_different_n_do_not_make_a_chain(tmp_path: Path, rng: np.random.Generator) -> None:
    root = random_table(rng, "general@1", None, 9, complete=True, n=5)
    child = random_table(rng, "medicine@1", "general@1", 9, n=3)
    with pytest.raises(CorruptFileError, match="differ in hidden size or in n"):
        opened([child, root], tmp_path)
