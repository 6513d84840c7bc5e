"""The serve loop's three batches at a time: staged, running, answered. Real stacks, real weights."""

from __future__ import annotations

import json
import queue
import random
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.host_bank import HostBank
from backends.engine.encoder_stack import EncoderStack
from backends.engine.stack import UpperStack
from backends.errors import UnavailableError, UnusableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.scheduling.settings import Capacity
from backends.wire import Ticket, encode_tickets
from bench.kit.marks import Mark
from marked_engine import HIDDEN, Responses, ask, marked_keys, running
from served_engine import TINY, hold_runs
from waiting import wait_until


@pytest.mark.parametrize(
    ("device", "dtype"), [("cpu", "fp32"), ("cpu", "int8"), pytest.param("cuda", "fp32", marks=pytest.mark.gpu)]
)
def test_staging_while_running_never_mixes_tenants(tiny_home: Home, device: str, dtype: str) -> None:
    """Far more hPLMs than slots, asked in a random order by several threads; every answer shows its own weights."""
    entries = marked_keys(tiny_home)
    seed = random.randrange(1 << 30)
    pending: list[tuple[int, Responses]] = []
    capacity = Capacity(max_rows=6, max_adapters=5)
    with running(tiny_home, 6, capacity, device, dtype=dtype) as service:

        def client(number: int) -> None:
            chance = random.Random(seed + number)
            for _ in range(60):
                key = chance.choice(list(entries))
                pending.append((key, ask(service, key, chance.randint(1, 9))))
                time.sleep(chance.choice([0, 0, 0.002]))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for key, responses in pending:
            (answer,) = responses.get(timeout=60)
            found = json.loads(answer)
            assert (found["hplm"], found["version"]) == entries[key], f"seed {seed}"
            assert Mark.of(*entries[key]).fits(found["scores"]), f"seed {seed}"


def test_rows_join_a_batch_until_it_runs_and_a_full_one_is_staged_meanwhile(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=3, max_adapters=3)) as service:
        pending = [ask(service, key)]
        assert begun.get(timeout=30) == 1
        pending += [ask(service, key) for _ in range(5)]
        go.set()
        sizes = [begun.get(timeout=30) for _ in range(2)]
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)
    assert sizes == [3, 2]


def test_adapters_are_loaded_while_a_batch_runs(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = marked_keys(tiny_home, versions=0)
    go, begun = hold_runs(monkeypatch)
    loaded = queue.Queue[int]()
    load = HostBank.artifact

    def seen(bank: HostBank, entry: Any, *others: Any) -> Any:
        artifact = load(bank, entry, *others)
        loaded.put(entry.key)
        return artifact

    monkeypatch.setattr(HostBank, "artifact", seen)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=8, max_adapters=3)) as service:
        pending = [ask(service, first)]
        assert begun.get(timeout=30) == 1
        assert loaded.get(timeout=30) == first
        pending.append(ask(service, second))
        assert loaded.get(timeout=30) == second  # the first batch still runs
        go.set()
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)
    assert loaded.empty()


def test_what_a_running_batch_uses_is_not_evicted(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot, two hPLMs: the second waits for the first, and both are answered by their own weights."""
    entries = marked_keys(tiny_home, versions=0)
    first, second, *_ = entries
    go, begun = hold_runs(monkeypatch)
    with running(tiny_home, num_slots=2, capacity=Capacity(max_rows=8, max_adapters=1)) as service:
        pending = {first: ask(service, first)}
        assert begun.get(timeout=30) == 1
        pending[second] = ask(service, second)
        time.sleep(0.1)
        stack = service._stacks.of(TINY).upper
        assert stack.slots.resident() == [first]
        go.set()
        for key, responses in pending.items():
            (answer,) = responses.get(timeout=30)
            assert Mark.of(*entries[key]).fits(json.loads(answer)["scores"])


def test_a_batch_of_more_adapters_than_slots_is_split(tiny_home: Home) -> None:
    """A capacity that promises more than the slots can hold costs a second batch, not an error."""
    entries = marked_keys(tiny_home)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=64, max_adapters=64)) as service:
        pending = {key: ask(service, key) for key in entries}
        for key, responses in pending.items():
            (answer,) = responses.get(timeout=60)
            assert Mark.of(*entries[key]).fits(json.loads(answer)["scores"])


def test_a_failing_load_fails_its_own_jobs_only(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds also where the load was begun ahead, while another batch ran."""
    entries = marked_keys(tiny_home, versions=0)
    good, bad, *_ = entries
    registry = Registry.open(tiny_home)
    weights = tiny_home.path / registry.hplms_by_key([bad])[0].folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    go, begun = hold_runs(monkeypatch)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=8, max_adapters=3)) as service:
        pending = [(good, ask(service, good))]
        assert begun.get(timeout=30) == 1
        pending += [(key, ask(service, key)) for key in (bad, good, bad)]
        go.set()
        for key, responses in pending:
            assert isinstance(responses.get(timeout=30), UnusableError if key == bad else list)


def test_closing_while_a_batch_runs_and_another_is_staged(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=2, max_adapters=3)) as service:
        runs = ask(service, key)
        assert begun.get(timeout=30) == 1
        others = [ask(service, key) for _ in range(5)]  # two are staged, three wait
        closing = threading.Thread(target=service.close)
        closing.start()
        wait_until(lambda: service._loop._queue.is_closed)
        go.set()
        closing.join(30)
        assert not closing.is_alive()
        assert isinstance(runs.get(timeout=1), list)
        assert all(isinstance(responses.get(timeout=1), UnavailableError) for responses in others)
        assert begun.empty()


def test_computing_has_the_threads_that_its_maker_had(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what staging, or whoever else, sets for itself later."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    run = UpperStack._run
    seen: list[int] = []

    def noted(stack: UpperStack, *arguments: Any) -> list[torch.Tensor]:
        seen.append(torch.get_num_threads())
        return run(stack, *arguments)

    monkeypatch.setattr(UpperStack, "_run", noted)
    mine = torch.get_num_threads()
    try:
        for threads in (None, 2):
            torch.set_num_threads(3)
            with running(tiny_home, 4, Capacity(max_adapters=3), threads=threads) as service:
                time.sleep(0.2)
                torch.set_num_threads(1)
                assert isinstance(ask(service, key).get(timeout=30), list)
    finally:
        torch.set_num_threads(mine)
    assert seen == [3, 2]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_a_batch_too_large_for_the_memory_runs_in_halves(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    run = UpperStack.run
    sizes: list[int] = []

    def small_only(stack: UpperStack, packed: Any, hplms: Any, *rest: Any) -> list[torch.Tensor]:
        sizes.append(len(hplms))
        if len(hplms) > 2:
            raise error
        return run(stack, packed, hplms, *rest)

    monkeypatch.setattr(UpperStack, "run", small_only)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=4, max_adapters=3)) as service:
        pending = [ask(service, key)]
        assert begun.get(timeout=30) == 1
        pending += [ask(service, key) for _ in range(4)]
        go.set()
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)
        assert sizes == [1, 4, 2, 2]
        monkeypatch.setattr(UpperStack, "run", lambda *_: (_ for _ in ()).throw(error))
        failed = ask(service, key).get(timeout=30)
        assert isinstance(failed, UnavailableError)
        assert "out of memory" in str(failed)
        monkeypatch.setattr(UpperStack, "run", run)
        assert isinstance(ask(service, key).get(timeout=30), list)


def test_a_row_that_cannot_be_packed_fails_alone(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    pack = EncoderStack.pack
    guilty: list[Any] = []

    def all_but_one(stack: EncoderStack, jobs: Sequence[Any]) -> Any:
        if len(jobs) > 1 and not guilty:
            guilty.append(jobs[1])
        if guilty and guilty[0] in jobs:
            raise ValueError("a row that cannot be packed")
        return pack(stack, jobs)

    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=4, max_adapters=3)) as service:
        first = ask(service, key)
        assert begun.get(timeout=30) == 1
        monkeypatch.setattr(EncoderStack, "pack", all_but_one)
        pending = [ask(service, key) for _ in range(4)]
        go.set()
        answers = [responses.get(timeout=30) for responses in (first, *pending)]
    assert [isinstance(answer, list) for answer in answers] == [True, True, False, True, True]


def test_a_failed_run_holds_no_memory_while_it_is_tried_again(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what it computed nor its packed rows, or the halves would have less room than the whole had."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    run = UpperStack.run
    of_failed_run: list[weakref.ref[torch.Tensor]] = []
    num_alive: list[int] = []

    def fail_once(stack: UpperStack, packed: Any, hplms: Any, *rest: Any) -> list[torch.Tensor]:
        if of_failed_run:
            num_alive.append(sum(tensor() is not None for tensor in of_failed_run))
            return run(stack, packed, hplms, *rest)
        states = packed.micro_batches[0].hidden * 2
        of_failed_run.extend([weakref.ref(states), weakref.ref(packed.micro_batches[0].hidden)])
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(UpperStack, "run", fail_once)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=4, max_adapters=3)) as service:
        with service._loop._changed:
            pending = [ask(service, key) for _ in range(4)]
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)
    assert num_alive == [0, 0]


def test_rows_that_the_device_has_no_room_for_wait_for_a_smaller_batch(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    pack = UpperStack.pack

    def small_only(stack: UpperStack, rows: Any, *others: Any, **options: Any) -> Any:
        if len(rows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return pack(stack, rows, *others, **options)

    monkeypatch.setattr(UpperStack, "pack", small_only)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=4, max_adapters=3)) as service:
        pending = [ask(service, key)]
        assert begun.get(timeout=30) == 1
        pending += [ask(service, key) for _ in range(4)]
        go.set()
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)
        assert service._stacks.of(TINY).upper.slots._pins == [0] * 4


def test_the_rows_of_a_request_prefetch_their_hplm_once(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = marked_keys(tiny_home, versions=0)
    prefetched: list[int] = []
    prefetch = HostBank.prefetch

    def counted(bank: HostBank, entry: HplmEntry) -> None:
        prefetched.append(entry.key)
        prefetch(bank, entry)

    monkeypatch.setattr(HostBank, "prefetch", counted)
    responses: Responses = queue.Queue()
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=8, max_adapters=3)) as service:
        tickets = encode_tickets([Ticket(key, 4, False, None) for key in [first, second] * 3])
        service.submit(np.ones((6, 4, HIDDEN), np.float16), tickets, [b""] * 6, responses.put)
        assert isinstance(responses.get(timeout=30), list)
    assert prefetched == [first, second]


def test_a_version_is_checked_once(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hPLMs that take each other's only slot are read again and again, their checksums once."""
    first, second, *_ = marked_keys(tiny_home, versions=0)
    reads: list[Path] = []
    checked: list[bool] = []

    def counted(folder: Path, fingerprint: str, was_checked: bool = False) -> Any:
        reads.append(folder)
        checked.append(was_checked)
        return read_artifact(folder, fingerprint, was_checked)

    monkeypatch.setattr("backends.adapters.host_bank.read_artifact", counted)
    monkeypatch.setattr("backends.adapters.host_bank._MAX_MAPPED", 1)
    with running(tiny_home, num_slots=2, capacity=Capacity(max_rows=8, max_adapters=1)) as service:
        for key in [first, second] * 3:
            assert isinstance(ask(service, key).get(timeout=30), list)
    assert len(reads) == 6
    assert checked == [False, False, True, True, True, True]


def test_rows_in_foreign_memory_are_copied(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their owner may overwrite it at once."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    hidden = np.frombuffer(bytearray(2 * 4 * HIDDEN), np.float16).reshape(1, 4, HIDDEN)
    hidden[:] = 1.0
    responses: Responses = queue.Queue()
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=8, max_adapters=3)) as service:
        tickets = encode_tickets([Ticket(key, 4, False, None)])
        service.submit(hidden, tickets, [b""], responses.put)
        hidden[:] = np.nan
        assert begun.get(timeout=30) == 1
        go.set()
        assert isinstance(responses.get(timeout=30), list)
