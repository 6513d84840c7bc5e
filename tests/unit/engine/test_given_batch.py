"""A batch that somebody else has formed runs as it is, and each of its requests is answered by itself."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from backends.clock import now_us
from backends.engine.running import BatchRunner
from backends.engine.service import HiddenRows, UpperService
from backends.engine.stack import StackSettings
from backends.errors import HplmError, InvalidArgumentError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import Capacity
from backends.wire import Ticket, encode_tickets, fold_rows

HIDDEN = 64


@contextmanager
def running(home: Home, num_slots: int = 8, max_tokens: int = 4096) -> Iterator[UpperService]:
    snapshot = RegistrySnapshot(Registry.open(home))
    capacity = Capacity(max_tokens=max_tokens, max_adapters=num_slots - 1)
    service = UpperService(home, snapshot, StackSettings(dtype="fp32", num_slots=num_slots), capacity)
    try:
        yield service
    finally:
        service.close()
        snapshot.close()


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each batch that has run."""
    sizes: list[int] = []

    run_batch = BatchRunner.run

    def run(runner: BatchRunner, packed: object) -> None:
        sizes.append(len(runner._jobs))
        run_batch(runner, packed)

    monkeypatch.setattr(BatchRunner, "run", run)
    return sizes


def keys_of(home: Home) -> dict[str, int]:
    return {entry.id: entry.key for entry in Registry.open(home).hplms()}


def request(keys: list[int], length: int = 5, deadline_us: int | None = None, seed: int = 1) -> HiddenRows:
    rows = [np.random.default_rng(seed + key).normal(size=(length, HIDDEN)).astype(np.float16) for key in keys]
    tickets = [Ticket(key, length, False, deadline_us) for key in keys]
    return HiddenRows(fold_rows(rows), encode_tickets(tickets), [b""] * len(keys))


def alone(service: UpperService, one: HiddenRows) -> list[dict[str, object]]:
    (answers,) = service.run([one])
    assert isinstance(answers, list)
    return [json.loads(answer) for answer in answers]


def test_requests_of_mixed_tenants_are_one_batch_with_the_answers_that_each_has_alone(
    built_home: Home, batches: list[int]
) -> None:
    keys = list(keys_of(built_home).values())
    seed = random.randrange(1 << 20)
    chance = random.Random(seed)
    chosen = [[chance.choice(keys) for _ in range(1 + n % 3)] for n in range(9)]
    with running(built_home) as service:
        together = service.run([request(of_one, 3 + n, seed=n) for n, of_one in enumerate(chosen)])
        assert batches == [sum(1 + n % 3 for n in range(9))]
        for n, answers in enumerate(together):
            assert isinstance(answers, list)
            expecteds = alone(service, request(chosen[n], 3 + n, seed=n))
            for got, expected in zip(map(json.loads, answers), expecteds, strict=True):
                assert got["hplm"] == expected["hplm"], seed
                for label, score in expected["scores"].items():  # type: ignore[attr-defined]
                    assert abs(got["scores"][label] - score) < 1e-4, seed


def test_a_batch_beyond_the_capacity_is_run_in_parts(built_home: Home, batches: list[int]) -> None:
    keys = list(keys_of(built_home).values())
    with running(built_home, max_tokens=20) as service:
        assert all(isinstance(answers, list) for answers in service.run([request([keys[0]]) for _ in range(10)]))
    assert batches == [4, 4, 2]


def test_a_batch_of_more_hplms_than_slots_is_run_in_parts(built_home: Home, batches: list[int]) -> None:
    keys = list(keys_of(built_home).values())
    with running(built_home, num_slots=2) as service:
        assert all(isinstance(answers, list) for answers in service.run([request([key, key]) for key in keys]))
    assert batches == [2] * len(keys)


def test_what_is_late_is_refused_before_the_others_run(built_home: Home, batches: list[int]) -> None:
    key = keys_of(built_home)["acme/topic"]
    with running(built_home) as service:
        late, good, unread = service.run(
            [request([key], deadline_us=now_us() - 1), request([key]), InvalidArgumentError("no tensors")]
        )
    assert isinstance(late, UnavailableError)
    assert "deadline" in str(late)
    assert isinstance(good, list)
    assert str(unread) == "no tensors"
    assert batches == [1]


def test_a_bad_request_costs_its_batch_nothing(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    wrong = HiddenRows(np.zeros((1, 2, HIDDEN), np.float16), np.zeros((1, 3), np.int64), [b""])
    with running(built_home) as service:
        first, second, unknown = service.run([wrong, request([key]), request([999_999])])
        assert isinstance(first, InvalidArgumentError)
        assert isinstance(second, list)
        assert isinstance(unknown, HplmError)
        assert service.run([]) == []
        assert isinstance(service.run([wrong])[0], InvalidArgumentError)
