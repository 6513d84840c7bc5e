import numpy as np
import pytest
from plot_reference import flat

from backends.errors import InvalidArgumentError
from backends.plot import fragment_keys, fragments, pack, right_bigram, unigram, unpack
from backends.plot.keys import ID_LIMIT, WIDE_ID_LIMIT, WIDE_KEY, FragmentShape, left_bigram, trigram

FIVE = FragmentShape.centred(5)


def random_rows(rng: np.random.Generator, rows: int, limit: int = ID_LIMIT) -> list[list[int]]:
    lengths = rng.integers(0, 9, rows).tolist()
    return [rng.integers(1, limit, length).tolist() for length in lengths]


@pytest.mark.parametrize("before, after", [(1, 1), (2, 0), (0, 1), (1, 0), (0, 0), (0, 2), (2, 2)])
def test_fragments_equal_a_loop_over_tokens(rng: np.random.Generator, before: int, after: int) -> None:
    rows = random_rows(rng, 200)
    expected = [
        [row[j] if 0 <= j < len(row) else 0 for j in range(i - before, i + after + 1)]
        for row in rows
        for i in range(len(row))
    ]
    token_ids, row_offsets = flat(rows)
    found = fragments(token_ids, row_offsets, FragmentShape(before, after))
    assert found.tolist() == expected


def test_fragment_keys_are_the_packed_fragments(rng: np.random.Generator) -> None:
    token_ids, row_offsets = flat([[5], *random_rows(rng, 300), [], [7], [ID_LIMIT - 1]])
    keys = fragment_keys(token_ids, row_offsets)
    assert keys.dtype == np.uint64
    assert np.array_equal(keys, pack(fragments(token_ids, row_offsets)))


def test_keys_of_two_and_of_five_are_the_packed_fragments(rng: np.random.Generator) -> None:
    last = WIDE_ID_LIMIT - 1
    token_ids, row_offsets = flat([[5], [], *random_rows(rng, 2000, WIDE_ID_LIMIT), [7], [last], [], [], [last] * 5])
    check_two_and_five(token_ids, row_offsets)


def check_two_and_five(token_ids: np.ndarray, row_offsets: np.ndarray) -> None:
    pairs = fragments(token_ids, row_offsets, FragmentShape(1, 0))
    as_trigrams = np.column_stack([pairs, np.zeros(len(pairs), np.int64)])
    assert np.array_equal(fragment_keys(token_ids, row_offsets, FragmentShape.centred(2)), pack(as_trigrams))
    keys, ids = fragment_keys(token_ids, row_offsets, FIVE), fragments(token_ids, row_offsets, FIVE)
    assert keys.dtype == WIDE_KEY
    assert np.array_equal(keys, pack(ids))
    assert np.array_equal(unpack(keys), ids)
    assert np.array_equal(trigram(keys), fragment_keys(token_ids, row_offsets))


@pytest.mark.parametrize(
    "rows", [[], [[]], [[], []], [[3]], [[3], [4]], [[3, 4]], [[3, 4, 5]], [[3, 4], [5]], [[3], [4, 5], [6, 7, 8, 9]]]
)
def test_tiny_batches(rows: list[list[int]]) -> None:
    token_ids, row_offsets = flat(rows)
    expected = pack(fragments(token_ids, row_offsets))
    assert np.array_equal(fragment_keys(token_ids, row_offsets), expected)
    check_two_and_five(token_ids, row_offsets)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_unpack_undoes_pack_up_to_the_largest_id(rng: np.random.Generator, n: int) -> None:
    ids = np.vstack([rng.integers(0, ID_LIMIT, (1000, n)), np.full((1, n), ID_LIMIT - 1)])
    assert np.array_equal(unpack(pack(ids), n), ids)
    assert np.unique(pack(ids)).size == np.unique(ids, axis=0).shape[0]


def test_fallback_keys(rng: np.random.Generator) -> None:
    ids = rng.integers(0, ID_LIMIT, (1000, 3))
    bigrams = ids.copy()
    bigrams[:, 0] = 0
    assert np.array_equal(right_bigram(pack(ids)), pack(bigrams))
    assert np.array_equal(unigram(pack(ids)), ids[:, 1])
    left_bigrams = ids.copy()
    left_bigrams[:, 2] = 0
    assert np.array_equal(left_bigram(pack(ids)), pack(left_bigrams))
    fives = rng.integers(0, WIDE_ID_LIMIT, (1000, 5))
    bigrams = fives[:, 1:4].copy()
    bigrams[:, 0] = 0
    assert np.array_equal(right_bigram(pack(fives)), pack(bigrams))
    assert np.array_equal(unigram(pack(fives)), fives[:, 2])


@pytest.mark.parametrize("token_id", [ID_LIMIT, 0, -1, 2**62])
def test_ids_that_do_not_fit_are_refused(token_id: int) -> None:
    with pytest.raises(InvalidArgumentError, match=str(token_id)):
        fragment_keys(np.array([4, token_id, 5]), np.array([0, 3]))
    with pytest.raises(InvalidArgumentError):
        fragments(np.array([4, token_id, 5]), np.array([0, 3]))


def test_packing_refuses_large_ids_and_wide_fragments() -> None:
    with pytest.raises(InvalidArgumentError):
        pack(np.array([[1, 2, ID_LIMIT]]))
    with pytest.raises(InvalidArgumentError):
        pack(np.array([[1, 2, -3]]))
    with pytest.raises(InvalidArgumentError):
        pack(np.array([[1, 2, 3, 4]]))
    with pytest.raises(InvalidArgumentError):
        pack(np.array([[1, 2, 3, 4, WIDE_ID_LIMIT]]))
    with pytest.raises(InvalidArgumentError, match=str(WIDE_ID_LIMIT)):
        fragment_keys(np.array([4, WIDE_ID_LIMIT, 5]), np.array([0, 3]), FIVE)
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        FragmentShape(3, 2)
    with pytest.raises(InvalidArgumentError, match="no keys"):
        fragment_keys(np.array([4, 5]), np.array([0, 2]), FragmentShape(2, 0))


@pytest.mark.parametrize("row_offsets", [[], [0], [0, 2], [1, 3], [0, 4], [0, 2, 1, 3]])
def test_offsets_that_do_not_cover_the_tokens_are_refused(row_offsets: list[int]) -> None:
    with pytest.raises(InvalidArgumentError):
        fragment_keys(np.array([1, 2, 3]), np.array(row_offsets, np.int64))
