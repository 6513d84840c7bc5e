"""The serve loop: every job is answered once, whatever happens to its neighbours."""

from __future__ import annotations

import json
import queue
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from backends.clock import now_us
from backends.engine.job import Answer, Job
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import CorruptFileError, HplmError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.policy import Capacity, FirstComeFirstServed
from backends.wire import Ticket, encode_tickets, fold_rows

HIDDEN = 64
Responses = queue.Queue[list[bytes] | HplmError]


@contextmanager
def running(home: Home, num_slots: int = 8, capacity: Capacity | None = None) -> Iterator[UpperService]:
    snapshot = RegistrySnapshot(Registry.open(home))
    limits = capacity or Capacity(max_adapters=num_slots - 1)
    service = UpperService(home, snapshot, StackSettings(dtype="fp32", num_slots=num_slots, max_bottleneck=16), limits)
    try:
        yield service
    finally:
        service.close()
        snapshot.close()


def keys_of(home: Home) -> dict[str, int]:
    return {entry.id: entry.key for entry in Registry.open(home).hplms()}


def ask(service: UpperService, keys: list[int], deadline_us: int | None = None) -> Responses:
    lengths = [3 + place for place in range(len(keys))]
    rows = [np.random.default_rng(1).normal(size=(length, HIDDEN)).astype(np.float16) for length in lengths]
    tickets = [Ticket(key, length, False, deadline_us) for key, length in zip(keys, lengths, strict=True)]
    responses: Responses = queue.Queue()
    service.submit(fold_rows(rows), encode_tickets(tickets), responses.put)
    return responses


def test_a_request_of_mixed_tenants_is_answered_in_its_order(built_home: Home) -> None:
    keys = keys_of(built_home)
    with running(built_home) as service:
        answers = ask(service, list(keys.values())).get(timeout=30)
    assert isinstance(answers, list)
    assert [json.loads(answer)["hplm"] for answer in answers] == list(keys)


def test_more_tenants_than_slots_are_split_not_failed(built_home: Home) -> None:
    keys = list(keys_of(built_home).values())
    with running(built_home, num_slots=2) as service:
        pending = [ask(service, keys) for _ in range(5)]
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)


def test_a_damaged_adapter_fails_its_own_requests_only(tiny_home: Home) -> None:
    entries = {entry.id: entry for entry in Registry.open(tiny_home).hplms()}
    weights = tiny_home.path / entries["acme/mood"].folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with running(tiny_home) as service:
        bad = ask(service, [entries["acme/mood"].key])
        good = ask(service, [entries["acme/topic"].key])
        error = bad.get(timeout=30)
        assert isinstance(error, CorruptFileError)
        assert isinstance(good.get(timeout=30), list)


def test_an_adapter_that_has_vanished_is_an_error_not_a_crash(tiny_home: Home) -> None:
    entries = {entry.id: entry for entry in Registry.open(tiny_home).hplms()}
    shutil.rmtree(tiny_home.path / entries["acme/mood"].folder)
    with running(tiny_home) as service:
        assert isinstance(ask(service, [entries["acme/mood"].key]).get(timeout=30), CorruptFileError)
        assert isinstance(ask(service, [entries["acme/topic"].key]).get(timeout=30), list)


def test_an_expired_deadline_is_refused_before_compute(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    with running(built_home) as service:
        error = ask(service, [key], deadline_us=now_us() - 1).get(timeout=30)
        assert isinstance(error, UnavailableError)
        assert "deadline" in str(error)
        assert isinstance(ask(service, [key], deadline_us=now_us() + 30_000_000).get(timeout=30), list)


def test_a_batch_that_fails_is_answered_and_the_loop_lives(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys_of(built_home)["acme/topic"]
    run = UpperStack.run

    def fail(*_: object) -> list[torch.Tensor]:
        raise RuntimeError("a secret of the machine")

    with running(built_home) as service:
        monkeypatch.setattr(UpperStack, "run", fail)
        error = ask(service, [key]).get(timeout=30)
        assert isinstance(error, HplmError)
        assert "secret" not in str(error)
        monkeypatch.setattr(UpperStack, "run", run)
        assert isinstance(ask(service, [key]).get(timeout=30), list)


def test_a_caller_that_is_gone_costs_the_others_nothing(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]

    def gone(_: list[bytes] | HplmError) -> None:
        raise ConnectionError("gone")

    with running(built_home) as service:
        service.submit(np.zeros((1, 3, HIDDEN), np.float16), encode_tickets([Ticket(key, 3, False, None)]), gone)
        assert isinstance(ask(service, [key]).get(timeout=30), list)


def test_a_result_that_is_not_a_number_is_an_error(built_home: Home) -> None:
    keys = keys_of(built_home)
    responses: Responses = queue.Queue()
    with running(built_home) as service:
        rows = np.full((1, 3, HIDDEN), np.nan, np.float16)
        service.submit(rows, encode_tickets([Ticket(keys["acme/topic"], 3, False, None)]), responses.put)
        error = responses.get(timeout=30)
        assert isinstance(error, HplmError)
        assert "not a number" in str(error)
        assert isinstance(ask(service, [keys["acme/topic"]]).get(timeout=30), list)


def test_rows_of_the_wrong_width_fail_alone(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    responses: Responses = queue.Queue()
    with running(built_home) as service:
        tickets = encode_tickets([Ticket(key, 3, False, None)])
        service.submit(np.zeros((1, 3, HIDDEN + 1), np.float16), tickets, responses.put)
        assert isinstance(responses.get(timeout=30), HplmError)
        assert isinstance(ask(service, [key]).get(timeout=30), list)


@pytest.mark.parametrize("num_tokens", [0, -1, 33])
def test_tickets_with_impossible_lengths_fail_alone(built_home: Home, num_tokens: int) -> None:
    key = keys_of(built_home)["acme/topic"]
    responses: Responses = queue.Queue()
    with running(built_home) as service:
        pending = [ask(service, [key]) for _ in range(3)]
        tickets = encode_tickets([Ticket(key, num_tokens, False, None)])
        service.submit(np.zeros((1, 40, HIDDEN), np.float16), tickets, responses.put)
        assert "tokens" in str(responses.get(timeout=30))
        assert all(isinstance(one.get(timeout=30), list) for one in pending)


def test_one_job_that_cannot_run_does_not_fail_its_batch(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(built_home)
    run = UpperStack.run

    def fail_on_mood(stack: UpperStack, packed: Any, hplms: Any) -> list[torch.Tensor]:
        if any(hplm.lease.key == keys["acme/mood"] for hplm in hplms):
            raise RuntimeError("broken")
        return run(stack, packed, hplms)

    monkeypatch.setattr(UpperStack, "run", fail_on_mood)
    with running(built_home) as service:
        pending = {hplm: ask(service, [key]) for hplm, key in keys.items() for _ in range(3)}
        for hplm, responses in pending.items():
            assert isinstance(responses.get(timeout=30), HplmError if hplm == "acme/mood" else list)


def test_a_full_queue_refuses_at_once(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    snapshot = RegistrySnapshot(Registry.open(built_home))
    settings = StackSettings(dtype="fp32", num_slots=3, max_bottleneck=16)
    service = UpperService(built_home, snapshot, settings, Capacity(max_adapters=2), max_waiting=2)
    try:
        error = ask(service, [key] * 3).get(timeout=30)
        assert isinstance(error, UnavailableError)
        assert "full" in str(error)
        assert isinstance(ask(service, [key] * 2).get(timeout=30), list)
    finally:
        service.close()
        snapshot.close()


def test_a_policy_that_fails_stops_nobody(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[int]:
        raise ValueError("a defect")

    monkeypatch.setattr(FirstComeFirstServed, "select", fail)
    keys = list(keys_of(built_home).values())
    with running(built_home) as service:
        assert isinstance(ask(service, keys).get(timeout=30), list)


def test_closing_refuses_what_comes_after(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    with running(built_home) as service:
        pass
    assert isinstance(ask(service, [key]).get(timeout=5), UnavailableError)


def test_jobs_are_compared_by_identity() -> None:
    """Two equal-looking jobs in one queue are two jobs."""
    fields = {"hidden": torch.zeros(1, 1), "truncated": False, "deadline_us": None}
    entry = object()

    def respond(_: Answer | HplmError) -> None:
        return None

    jobs = [Job(entry=entry, respond=respond, **fields) for _ in range(2)]  # type: ignore[arg-type]
    assert jobs[0] != jobs[1]


def test_a_server_without_a_single_root_does_not_start(tiny_home: Home) -> None:
    weights = tiny_home.root("tiny") / "upper.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CorruptFileError), running(tiny_home):
        pass
