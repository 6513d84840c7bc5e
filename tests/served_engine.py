"""An engine in this process, without Triton, and requests to it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import HplmError
from backends.held_roots import Roots
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import Capacity
from backends.stack_key import StackKey
from backends.wire import Ticket, encode_tickets, fold_rows

HIDDEN = 64
TINY = StackKey("tiny")
Responses = queue.Queue[list[bytes] | HplmError]


@contextmanager
def running(
    home: Home,
    num_slots: int = 8,
    capacity: Capacity | None = None,
    layout: str = "ragged",
    dtype: str = "fp32",
    roots: Roots = None,
    device_memory: int | None = None,
) -> Iterator[UpperService]:
    snapshot = RegistrySnapshot(Registry.open(home))
    limits = capacity or Capacity(max_adapters=num_slots - 1)
    settings = StackSettings(dtype=dtype, num_slots=num_slots, layout=layout, device_memory=device_memory)
    service = UpperService(home, snapshot, settings, limits, roots=roots)
    try:
        yield service
    finally:
        closing = threading.Thread(target=service.close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive()
        snapshot.close()


def keys_of(home: Home) -> dict[str, int]:
    return {entry.id: entry.key for entry in Registry.open(home).hplms()}


def ask(service: UpperService, keys: list[int], deadline_us: int | None = None) -> Responses:
    lengths = [3 + place for place in range(len(keys))]
    rows = [np.random.default_rng(1).normal(size=(length, HIDDEN)).astype(np.float16) for length in lengths]
    tickets = [Ticket(key, length, False, deadline_us) for key, length in zip(keys, lengths, strict=True)]
    responses: Responses = queue.Queue()
    service.submit(fold_rows(rows), encode_tickets(tickets), [b""] * len(keys), responses.put)
    return responses


def hold_runs(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, queue.Queue[int]]:
    """Every batch says its size when it would run, and runs once the event is set."""
    go, begun = threading.Event(), queue.Queue[int]()
    run = UpperStack.run

    def held(stack: UpperStack, packed: Any, hplms: Any, *rest: Any) -> list[torch.Tensor]:
        begun.put(len(hplms))
        assert go.wait(30)
        return run(stack, packed, hplms, *rest)

    monkeypatch.setattr(UpperStack, "run", held)
    return go, begun
