"""A running engine of hPLMs whose answers show who computed them."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from backends.clock import now_us
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings
from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import Capacity
from backends.wire import Ticket, encode_tickets, fold_rows
from bench.kit.marks import mark_all, publish_marked

HIDDEN = 64
Responses = queue.Queue[list[bytes] | HplmError]


@contextmanager
def running(
    home: Home,
    num_slots: int,
    capacity: Capacity,
    device: str = "cpu",
    threads: int | None = None,
    dtype: str = "fp32",
) -> Iterator[UpperService]:
    snapshot = RegistrySnapshot(Registry.open(home))
    settings = StackSettings(device=device, dtype=dtype, num_slots=num_slots)
    service = UpperService(home, snapshot, settings, capacity, threads=threads)
    try:
        yield service
    finally:
        service.close()
        snapshot.close()


def ask(
    service: UpperService,
    key: int,
    length: int = 5,
    put: Callable[[Any], None] | None = None,
    deadline_ms: int | None = None,
) -> Responses:
    rows = [np.random.default_rng(key % 1000).normal(size=(length, HIDDEN)).astype(np.float16)]
    responses: Responses = queue.Queue()
    deadline_us = None if deadline_ms is None else now_us() + 1000 * deadline_ms
    tickets = encode_tickets([Ticket(key, length, False, deadline_us)])
    service.submit(fold_rows(rows), tickets, [b""], put or responses.put)
    return responses


def marked_keys(home: Home, versions: int = 3) -> dict[int, tuple[str, int]]:
    """Many hPLMs whose answers show who computed them."""
    registry = Registry.open(home)
    entries = {entry.key: (entry.id, entry.version) for entry in mark_all(home, registry)}
    for number in range(versions):
        for model in registry.hplms()[:4]:
            name = f"extra{number}/{model.id.replace('/', '-')}"
            entry = publish_marked(home, registry, name, model, model.domain)
            entries[entry.key] = (entry.id, entry.version)
    registry.close()
    return entries
