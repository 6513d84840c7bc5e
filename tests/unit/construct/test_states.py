"""The cache of lower states: equal to what the lower half gives, made once, and safe to lose."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from backends import storage
from backends.home import Home
from backends.lower.encoder import domain_encoder
from backends.lower.settings import LowerDtype
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import sample_texts
from builder.construct.hplm import state_rows, states
from builder.construct.hplm.exact_lower import exact_lower
from builder.construct.hplm.state_rows import StateRows
from builder.construct.hplm.states import StateCache
from builder.construct.training.rows import boundary_states, padded_rows
from builder.progress import Step, ignore


@pytest.fixture
def domain(tiny_home: Home) -> DomainEntry:
    shutil.rmtree(tiny_home.states)  # of the hPLMs that are there already
    return Registry.open(tiny_home).domain("tiny", "farm")


TEXTS = [text.text for text in sample_texts(300, seed=6)]  # more than one batch


def rows_of(
    home: Home, domain: DomainEntry, with_words: bool = False, count: int = 300
) -> tuple[StateRows, list[Step]]:
    steps: list[Step] = []
    return StateCache(home, domain).rows(TEXTS[:count], with_words, "train", steps.append), steps


def test_rows_and_words_are_those_of_the_lower_half(tiny_home: Home, domain: DomainEntry) -> None:
    rows, _ = rows_of(tiny_home, domain, with_words=True)
    encoded = exact_lower(tiny_home, domain).encode(TEXTS, [True] * len(TEXTS))
    assert len(rows) == len(TEXTS)
    assert rows.lengths.tolist() == [len(row) for row in encoded.rows]
    for place, (row, words) in enumerate(zip(encoded.rows, encoded.words, strict=True)):
        np.testing.assert_allclose(rows[place].numpy(), row, rtol=2e-3, atol=2e-3)
        mine = rows.words[place] if place < 3 else None
        if mine is not None and words is not None:
            for name in ("first_tokens", "starts", "ends"):
                assert np.array_equal(getattr(mine, name), getattr(words, name))


def test_training_computes_what_serving_looks_up(tiny_home: Home, domain: DomainEntry) -> None:
    root = RootFolder(tiny_home.root("tiny"))
    layers = domain_encoder(root, [tiny_home.path / folder for folder in domain.folders])
    computed = boundary_states(layers, root.aggregation(), padded_rows(root.tokenizer().encode(TEXTS[:40])))
    looked_up = np.concatenate(exact_lower(tiny_home, domain).encode(TEXTS[:40]).rows)
    np.testing.assert_allclose(computed.detach().numpy(), looked_up, rtol=2e-2, atol=2e-2)


def test_they_are_made_once(tiny_home: Home, domain: DomainEntry) -> None:
    first, steps = rows_of(tiny_home, domain)
    assert [step.done for step in steps] == [256, 300]
    assert {step.phase for step in steps} == {"look up the train texts"}
    second, steps = rows_of(tiny_home, domain)
    assert steps == []
    assert np.array_equal(first.hidden, second.hidden)
    assert rows_of(tiny_home, domain, with_words=True)[1]  # words were not kept before
    assert rows_of(tiny_home, domain, count=299)[1]
    assert rows_of(tiny_home, Registry.open(tiny_home).domain("tiny", "street"))[1]


def test_each_dtype_has_a_store_of_its_own(tiny_home: Home, domain: DomainEntry) -> None:
    dtypes: tuple[LowerDtype, ...] = ("bf16", "fp32", "int8")
    of_dtype = {dtype: StateCache(tiny_home, domain, dtype).rows(TEXTS, False, "train", ignore) for dtype in dtypes}
    assert len(list(tiny_home.states.iterdir())) == 3
    for dtype, rows in of_dtype.items():
        expected = np.concatenate(exact_lower(tiny_home, domain, dtype).encode(TEXTS).rows)
        np.testing.assert_array_equal(rows.hidden, expected, err_msg=dtype)


@pytest.mark.parametrize("damage", ["cut", "manifest.json", "hidden.f16", "row_offsets.npy", "gone"])
def test_a_damaged_store_is_made_again(tiny_home: Home, domain: DomainEntry, damage: str) -> None:
    before = np.array(rows_of(tiny_home, domain)[0].hidden)
    (store,) = tiny_home.states.iterdir()
    if damage == "cut":
        os.truncate(store / "hidden.f16", 100)
    elif damage == "gone":
        shutil.rmtree(tiny_home.path / "cache")
    else:
        (store / damage).unlink()
    after, steps = rows_of(tiny_home, domain)
    assert steps
    assert np.array_equal(before, after.hidden)
    assert [path.name for path in tiny_home.states.iterdir()] == [store.name]


def test_what_was_used_longest_ago_goes_first(
    tiny_home: Home, domain: DomainEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (100, 110, 120):
        rows_of(tiny_home, domain, count=count)
    stores = sorted(tiny_home.states.iterdir(), key=lambda path: (path / "hidden.f16").stat().st_size)
    for age, store in ((30, stores[0]), (10, stores[1]), (20, stores[2])):
        os.utime(store, (1e9 - age, 1e9 - age))
    killed = tiny_home.states / ".killed.1.2"
    killed.mkdir()
    os.utime(killed, (1e9, 1e9))
    limit = sum((store / "hidden.f16").stat().st_size for store in stores[:2]) + 1
    monkeypatch.setattr(states, "MAX_STORED_BYTES", limit)
    rows_of(tiny_home, domain, count=100)
    assert set(tiny_home.states.iterdir()) == {stores[0], stores[1]}
    monkeypatch.setattr(states, "MAX_STORED_BYTES", 0)
    rows_of(tiny_home, domain, count=100)
    assert set(tiny_home.states.iterdir()) == {stores[0]}  # what is in use stays


def test_a_failure_leaves_nothing(tiny_home: Home, domain: DomainEntry) -> None:
    def fail(step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StateCache(tiny_home, domain).rows(TEXTS, False, "train", fail)
    assert list(Path(tiny_home.states).iterdir()) == []


def test_a_kill_while_a_store_is_dropped_leaves_no_part_of_it(
    tiny_home: Home, domain: DomainEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of(tiny_home, domain, count=100)
    (old,) = tiny_home.states.iterdir()

    def killed(folder: Path, **_: object) -> None:
        if (folder / "row_offsets.npy").exists():
            (folder / "row_offsets.npy").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(states, "MAX_STORED_BYTES", 0)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(storage.shutil, "rmtree", killed)
        rows_of(tiny_home, domain, count=110)
    assert not old.exists()
    assert len(rows_of(tiny_home, domain, count=100)[0]) == 100


def test_a_store_that_another_build_drops_is_made_again(
    tiny_home: Home, domain: DomainEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = np.array(rows_of(tiny_home, domain)[0].hidden)
    touch = os.utime

    def dropped_then(store: Path) -> None:
        monkeypatch.setattr(state_rows.os, "utime", touch)
        touch(store)
        shutil.rmtree(store)

    monkeypatch.setattr(state_rows.os, "utime", dropped_then)
    after, steps = rows_of(tiny_home, domain)
    assert steps
    assert np.array_equal(before, after.hidden)


def test_hidden_files_count_for_the_limit(
    tiny_home: Home, domain: DomainEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of(tiny_home, domain, count=100)
    (old,) = tiny_home.states.iterdir()
    (tiny_home.states / ".other").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(states, "MAX_STORED_BYTES", 2_000_000)
    rows_of(tiny_home, domain, count=110)
    assert not old.exists()


def test_a_cache_that_is_cleared_while_it_is_filled_costs_nothing(tiny_home: Home, domain: DomainEntry) -> None:
    before = np.array(rows_of(tiny_home, domain)[0].hidden)
    shutil.rmtree(tiny_home.states)

    def clear(step: Step) -> None:
        shutil.rmtree(tiny_home.states, ignore_errors=True)

    after = StateCache(tiny_home, domain).rows(TEXTS, False, "train", clear)
    assert np.array_equal(before, after.hidden)
