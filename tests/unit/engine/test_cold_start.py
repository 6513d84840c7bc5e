"""The cold-start queue: requests to roots that are not loaded yet."""

from __future__ import annotations

import queue
import threading
from typing import cast

import pytest

from backends.engine.cold_start import ColdStartQueue
from backends.engine.loaded_stacks import LoadedStacks
from backends.home import Home
from backends.scheduling.rejection import RejectedError, Rejection
from backends.stack_key import StackKey
from served_engine import TINY, ask, keys_of, running


class SlowStacks:
    """Each root is loaded when it is told to be; the one called bad never."""

    def __init__(self) -> None:
        self.go = {name: threading.Event() for name in ("one", "other", "bad")}
        self.asked: list[str] = []

    def of(self, key: StackKey) -> object:
        root = key.root
        self.asked.append(root)
        assert self.go[root].wait(30)
        if root == "bad":
            raise ValueError("damaged")
        return object()


@pytest.fixture
def stacks() -> SlowStacks:
    return SlowStacks()


def test_no_root_waits_for_another_and_each_is_loaded_once(stacks: SlowStacks) -> None:
    cold_starts, taken = ColdStartQueue(cast(LoadedStacks, stacks), max_rows=10), queue.Queue[str]()
    for root in ("one", "other", "one", "bad"):
        cold_starts.add(StackKey(root), 1, lambda root=root: taken.put(root))  # type: ignore[misc]
    stacks.go["other"].set()
    assert taken.get(timeout=30) == "other"
    stacks.go["bad"].set()
    assert taken.get(timeout=30) == "bad"
    assert taken.empty()
    stacks.go["one"].set()
    cold_starts.close()
    assert [taken.get_nowait() for _ in range(2)] == ["one", "one"]
    assert sorted(stacks.asked) == ["bad", "one", "other"]


def test_no_more_rows_wait_than_may_and_there_is_room_again(stacks: SlowStacks) -> None:
    cold_starts, taken = ColdStartQueue(cast(LoadedStacks, stacks), max_rows=5), queue.Queue[int]()
    cold_starts.add(StackKey("one"), 3, lambda: taken.put(3))
    with pytest.raises(RejectedError, match="3 rows wait") as caught:
        cold_starts.add(StackKey("other"), 3, lambda: taken.put(0))
    assert caught.value.reason is Rejection.QUEUE_FULL
    cold_starts.add(StackKey("one"), 2, lambda: taken.put(2))
    stacks.go["one"].set()
    assert {taken.get(timeout=30), taken.get(timeout=30)} == {2, 3}
    stacks.go["other"].set()
    cold_starts.add(StackKey("other"), 5, lambda: taken.put(5))
    assert taken.get(timeout=30) == 5


def test_where_no_thread_can_be_started_only_that_request_fails(
    stacks: SlowStacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold_starts, taken = ColdStartQueue(cast(LoadedStacks, stacks), max_rows=5), queue.Queue[int]()

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            cold_starts.add(StackKey("one"), 5, lambda: taken.put(0))
    stacks.go["one"].set()
    cold_starts.add(StackKey("one"), 5, lambda: taken.put(5))
    assert taken.get(timeout=30) == 5
    cold_starts.close()


@pytest.mark.parametrize("roots", [None, ("tiny",), ("other",), ()])
def test_a_server_loads_what_it_holds_and_answers_for_the_rest_too(
    tiny_home: Home, roots: tuple[str, ...] | None
) -> None:
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, roots=roots) as service:
        assert service._stacks.holds(TINY) is (roots is None or "tiny" in roots)
        assert isinstance(ask(service, [key]).get(timeout=30), list)
