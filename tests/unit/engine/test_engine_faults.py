"""Faults inside the engine: an hPLM that fails in every batch, memory that is not there, threads that die."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from backends.adapters.bank import HplmArtifact
from backends.adapters.host_bank import HostBank
from backends.adapters.parts import Lora
from backends.device_errors import DeviceLostError
from backends.engine.job_queue import JobQueue
from backends.engine.outcomes import Outcomes
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import HplmError, UnavailableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.admission import Admission
from backends.scheduling.policy import Capacity
from served_engine import HIDDEN, TINY, ask, hold_runs, keys_of, running


@contextmanager
def together(service: UpperService) -> Iterator[None]:
    """Have all requests that are submitted meanwhile staged as one batch."""
    with service._loop._changed:
        yield


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each run of a stack."""
    found: list[int] = []
    run = UpperStack.run

    def counted(stack: UpperStack, packed: Any, hplms: Any, middles: Any) -> list[torch.Tensor]:
        found.append(len(hplms))
        return run(stack, packed, hplms, middles)

    monkeypatch.setattr(UpperStack, "run", counted)
    return found


@pytest.fixture
def charged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tenants: list[str] = []
    charge = Admission.charge

    def noted(admission: Admission, of: Sequence[str], *others: Any) -> None:
        tenants.extend(of)
        charge(admission, of, *others)

    monkeypatch.setattr(Admission, "charge", noted)
    return tenants


def test_an_hplm_that_overflows_in_every_batch_is_kept_out_and_its_tenant_charged(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, sizes: list[int], charged: list[str]
) -> None:
    keys = keys_of(built_home)
    good, bad = keys["globex/topic"], keys["acme/mood"]
    load = HostBank.artifact

    def overflowing(bank: HostBank, entry: HplmEntry, *args: Any) -> HplmArtifact:
        artifact = load(bank, entry, *args)
        if entry.key != bad:
            return artifact
        huge = {"value": Lora(torch.full((2, 4, HIDDEN), 1e25), torch.full((2, HIDDEN, 4), 1e25))}
        return replace(artifact, adapters=replace(artifact.adapters, loras=huge))

    monkeypatch.setattr(HostBank, "artifact", overflowing)
    with running(built_home) as service:
        with together(service):
            pending = [ask(service, [key]) for key in (good, bad, good, bad)]
        answers = [one.get(timeout=30) for one in pending]
        assert [isinstance(one, list) for one in answers] == [True, False, True, False]
        assert set(charged) == {"acme"}
        runs = len(sizes)
        assert runs == 2, "once together, once the spoilt rows isolated"
        for _ in range(5):
            error = ask(service, [bad]).get(timeout=30)
            assert isinstance(error, HplmError) and "not a number" in str(error)
        assert len(sizes) == runs, "rows of an hPLM that is kept out are not computed"
        assert isinstance(ask(service, [good]).get(timeout=30), list)
        service._loop.quarantine._kept_s = 0.0
        service._loop.quarantine._by_key = {key: (0.0, e) for key, (_, e) in service._loop.quarantine._by_key.items()}
        assert isinstance(ask(service, [bad]).get(timeout=30), HplmError)
        assert len(sizes) == runs + 2, "after a while it is tried again"


def test_rows_with_nan_in_them_keep_nobodys_hplm_out(built_home: Home) -> None:
    """Whoever sends such a row need not be the tenant."""
    key = keys_of(built_home)["acme/topic"]
    with running(built_home) as service:
        for _ in range(2):
            bad = ask(service, [key], fill=float("nan")).get(timeout=30)
            assert isinstance(bad, HplmError) and "not a number" in str(bad)
        assert isinstance(ask(service, [key]).get(timeout=30), list)


def test_the_guilty_rows_of_a_failed_batch_are_found_by_halves(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, charged: list[str]
) -> None:
    keys = keys_of(built_home)
    good, bad = keys["globex/topic"], keys["acme/mood"]
    run = UpperStack.run
    sizes: list[int] = []

    def fail_on_bad(stack: UpperStack, packed: Any, hplms: Any, middles: Any) -> list[torch.Tensor]:
        sizes.append(len(hplms))
        if any(hplm.lease.key == bad for hplm in hplms):
            raise RuntimeError("broken")
        return run(stack, packed, hplms, middles)

    monkeypatch.setattr(UpperStack, "run", fail_on_bad)
    with running(built_home) as service:
        with together(service):
            pending = [ask(service, [key]) for key in [good] * 10 + [bad] + [good] * 21]
        answers = [one.get(timeout=30) for one in pending]
        assert [isinstance(one, list) for one in answers] == [True] * 10 + [False] + [True] * 21
        assert len(sizes) == 1 + 2 * 5, "one by one it would be 32 runs more"
        assert charged == ["acme"]
        assert isinstance(ask(service, [bad]).get(timeout=30), HplmError)
        assert len(sizes) == 11


def test_a_batch_without_memory_is_halved_until_it_fits_and_the_next_one_is_smaller(
    built_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keys_of(built_home)["acme/topic"]
    run = UpperStack.run
    sizes: list[int] = []

    def small_only(stack: UpperStack, packed: Any, hplms: Any, middles: Any) -> list[torch.Tensor]:
        sizes.append(len(hplms))
        if len(hplms) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(stack, packed, hplms, middles)

    monkeypatch.setattr(UpperStack, "run", small_only)
    with running(built_home) as service:
        for expected in ([8, 4, 2, 2, 4, 2, 2], [2, 2, 2, 2]):
            sizes.clear()
            with together(service):
                pending = [ask(service, [key]) for _ in range(8)]
            assert all(isinstance(one.get(timeout=30), list) for one in pending)
            assert sizes == expected


@contextmanager
def failing(home: Home) -> Iterator[tuple[UpperService, threading.Event]]:
    """A service, and whether its loop has said that it failed."""
    snapshot, failed = RegistrySnapshot(Registry.open(home)), threading.Event()
    service = UpperService(
        home, snapshot, StackSettings(dtype="fp32", num_slots=4), Capacity(max_rows=2), on_failure=failed.set
    )
    try:
        yield service, failed
    finally:
        closing = threading.Thread(target=service.close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive(), "a dead thread keeps the others from ending"
        snapshot.close()


def dies(*_: object) -> None:
    raise ValueError("a defect")


def loses_device(*_: object) -> None:
    raise DeviceLostError("an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("target", "name", "error"),
    [
        (Admission, "take", dies),
        (Admission, "began", dies),
        (Admission, "finished", dies),
        (Outcomes, "take", dies),
        (UpperStack, "run", loses_device),
    ],
    ids=["staging", "between", "running", "answering", "device lost"],
)
def test_a_thread_that_dies_is_reported_and_no_request_waits_for_ever(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, target: object, name: str, error: Callable[..., None]
) -> None:
    keys = list(keys_of(built_home).values())
    with failing(built_home) as (service, failed):
        monkeypatch.setattr(target, name, error)
        with together(service):
            pending = [ask(service, keys) for _ in range(6)]
        for one in pending:
            one.get(timeout=30)
        assert failed.wait(30)
        assert isinstance(ask(service, keys).get(timeout=30), UnavailableError)
        assert not any(service._stacks.of(TINY).upper.slots._pins)  # type: ignore[attr-defined]


def test_rows_of_a_request_that_is_answered_are_not_computed(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {entry.id: entry for entry in Registry.open(tiny_home).hplms()}
    bad, good = entries["acme/mood"], entries["acme/topic"]
    weights = tiny_home.path / bad.folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    go, begun = hold_runs(monkeypatch)
    with running(tiny_home, capacity=Capacity(max_rows=1, max_adapters=4)) as service:
        first = ask(service, [good.key])
        assert begun.get(timeout=30) == 1
        failed, other = ask(service, [bad.key, good.key, good.key]), ask(service, [good.key])
        go.set()
        assert isinstance(failed.get(timeout=30), HplmError)
        assert isinstance(first.get(timeout=30), list) and isinstance(other.get(timeout=30), list)
        assert begun.get(timeout=30) == 1
        assert begun.empty(), "rows of the failed request ran"
        assert service.admission.num_waiting == 0


def test_pins_are_released_where_staging_fails_half_way(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """More hPLMs than slots: the queue is to take the others back, and cannot."""
    keys = list(keys_of(tiny_home).values())[:3]
    with running(tiny_home, num_slots=3, capacity=Capacity(max_rows=8, max_adapters=8)) as service:
        with monkeypatch.context() as patched:
            patched.setattr(JobQueue, "put_back", dies)
            with together(service):
                pending = [ask(service, [key]) for key in keys]
            assert all(isinstance(one.get(timeout=30), HplmError) for one in pending)
        assert not any(service._stacks.of(TINY).upper.slots._pins)  # type: ignore[attr-defined]
        assert all(isinstance(ask(service, [key]).get(timeout=30), list) for key in keys)
