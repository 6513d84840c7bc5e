"""Roots beside each other: what one of them does to the others' rows."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.engine import loaded_stacks
from backends.engine.service import HiddenRows
from backends.engine.stack import UpperStack
from backends.errors import UnavailableError, UnusableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.settings import Capacity
from backends.stack_key import StackKey
from backends.wire import Ticket, encode_tickets, fold_rows
from bench.kit.tiny_home import tiny_hplm, tiny_root
from served_engine import HIDDEN, TINY, ask, hold_runs, keys_of, running


@pytest.fixture(scope="module")
def home_of_two(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The tiny home with a second root, for all tests of this file to copy."""
    folder = tmp_path_factory.mktemp("two_roots")
    home = Home(Path(shutil.copytree(built_home.path, folder / "home")))
    other_root(home, folder)
    return home


@pytest.fixture
def other_key(tiny_home: Home, home_of_two: Home) -> int:
    """The key of an hPLM of a second root."""
    shutil.copytree(home_of_two.path, tiny_home.path, dirs_exist_ok=True)
    return keys_of(tiny_home)["new/one"]


def other_root(home: Home, work: Path) -> int:
    with contextlib.closing(Registry.open(home)) as registry:
        tiny_root(home, registry, work, name="other")
        tiny_hplm(home, registry, work, "new/one", "general", "topic", 3, root="other")
        return registry.hplm("new/one").key


def test_a_new_root_is_loaded_before_its_first_request(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = list[str](), UpperStack.__init__

    def noted(stack: UpperStack, root: RootFolder, *others: Any) -> None:
        load(stack, root, *others)
        loaded.append(root.manifest.name)

    monkeypatch.setattr(UpperStack, "__init__", noted)
    with running(tiny_home) as service:
        key = other_root(tiny_home, tmp_path)
        deadline_s = time.monotonic() + 30
        while "other" not in loaded:
            assert time.monotonic() < deadline_s, "nothing is loaded while nobody asks"
            time.sleep(0.02)
        ask(service, [key]).get(timeout=30)
    assert loaded == ["tiny", "other"]


def test_a_root_that_is_being_loaded_keeps_no_other_waiting(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, load = threading.Event(), UpperStack.__init__

    def held(stack: UpperStack, root: RootFolder, *others: Any) -> None:
        assert root.manifest.name == "tiny" or go.wait(60)
        load(stack, root, *others)

    monkeypatch.setattr(UpperStack, "__init__", held)
    with running(tiny_home) as service:
        new = ask(service, [other_root(tiny_home, tmp_path)])
        assert isinstance(ask(service, [keys_of(tiny_home)["acme/topic"]]).get(timeout=30), list)
        assert new.empty()
        go.set()
        assert isinstance(new.get(timeout=30), list)


@pytest.mark.parametrize("code", [None, errno.EIO, errno.EACCES, errno.ENOMEM])
def test_a_damaged_or_unreadable_root_is_read_once_and_fails_its_own_rows_only(
    tiny_home: Home, other_key: int, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    weights = tiny_home.root("other") / "upper.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    loaded, load = list[str](), UpperStack.__init__

    def noted(stack: UpperStack, root: RootFolder, *others: Any) -> None:
        loaded.append(root.manifest.name)
        if code is not None and root.manifest.name == "other":
            raise OSError(code, os.strerror(code))
        load(stack, root, *others)

    monkeypatch.setattr(UpperStack, "__init__", noted)
    healthy = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home) as service:
        pending = [(ask(service, [other_key]), ask(service, [healthy])) for _ in range(20)]
        for broken, whole in pending:
            assert isinstance(broken.get(timeout=30), UnusableError)
            assert isinstance(whole.get(timeout=30), list)
    assert sorted(loaded) == ["other", "tiny"]


def test_rows_of_another_root_make_no_batch_full(
    tiny_home: Home, other_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one runs, the next is still open for those that come, whoever else waits."""
    go, begun = hold_runs(monkeypatch)
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, capacity=Capacity(max_rows=4, max_adapters=4)) as service:
        pending = [ask(service, [key])]
        assert begun.get(timeout=30) == 1
        pending += [ask(service, [key]), ask(service, [other_key])]
        time.sleep(0.2)  # long enough for a batch to be staged, were it taken for full
        pending += [ask(service, [key]), ask(service, [other_key])]
        go.set()
        sizes = [begun.get(timeout=30) for _ in range(2)]
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)
    assert sizes == [2, 2]


def rows_of(key: int) -> HiddenRows:
    tickets = encode_tickets([Ticket(key, 5, False, None)])
    return HiddenRows(fold_rows([np.zeros((5, HIDDEN), np.float16)]), tickets, [b""])


def test_a_root_that_nothing_live_uses_is_unloaded_and_loaded_again(
    tiny_home: Home, other_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StackKey("other")
    with running(tiny_home) as service:
        assert isinstance(ask(service, [other_key]).get(timeout=30), list)
        stack = weakref.ref(service._stacks.of(other))
        monkeypatch.setattr(service._snapshot, "stacks", lambda: {TINY})
        service.release_unused()
        assert service._stacks.holds(TINY) and not service._stacks.holds(other)
        deadline_s = time.monotonic() + 30
        while stack() is not None:
            assert time.monotonic() < deadline_s, "the idle loop holds the stack of its last batch"
            gc.collect()
        assert isinstance(ask(service, [other_key]).get(timeout=30), list)


def test_a_root_that_is_not_held_goes_when_no_request_names_it(
    tiny_home: Home, other_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StackKey("other")
    with running(tiny_home, roots=("tiny",)) as service:
        for _ in range(2):
            assert isinstance(ask(service, [other_key]).get(timeout=30), list)
            service.release_unused()
            assert service._stacks.holds(other), "it was asked for just now"
            with monkeypatch.context() as later:
                later.setattr(loaded_stacks, "GUEST_S", -1.0)
                service.release_unused()
            assert service._stacks.holds(TINY) and not service._stacks.holds(other)
    with running(tiny_home) as service:
        assert isinstance(ask(service, [other_key]).get(timeout=30), list)
        monkeypatch.setattr(loaded_stacks, "GUEST_S", -1.0)
        service.release_unused()
        assert service._stacks.holds(other), "a server that holds all roots has no guests"


def test_a_batch_of_triton_waits_for_no_root_that_is_being_loaded(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, load = threading.Event(), UpperStack.__init__

    def held(stack: UpperStack, root: RootFolder, *others: Any) -> None:
        assert root.manifest.name == "tiny" or go.wait(60)
        load(stack, root, *others)

    monkeypatch.setattr(UpperStack, "__init__", held)
    with running(tiny_home) as service:
        new_key, old_key = other_root(tiny_home, tmp_path), keys_of(tiny_home)["acme/topic"]
        new, old = service.run([rows_of(new_key), rows_of(old_key)])
        assert isinstance(new, UnavailableError) and "being loaded" in str(new)
        assert isinstance(old, list)
        go.set()
        deadline_s = time.monotonic() + 30
        while not isinstance(service.run([rows_of(new_key)])[0], list):
            assert time.monotonic() < deadline_s
