"""Serving a tiny home in one process, with texts whose fragments hardly any table holds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from backends.home import Home
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.wire import Float16Array, Ticket, decode_tickets, unfold_rows
from bench.kit.tiny_home import FILLER, MOODS, TOPICS

WORDS = [*FILLER, *(word for group in (*TOPICS.values(), *MOODS.values()) for word in group)]
IDS = ("acme/topic", "globex/topic", "initech/mood", "acme/mood")  # farm, street, street, farm
SHORTER = ("bi", "uni")


@contextmanager
def serving(
    home: Home, missing: Missing, overlay_mb: int = 64, compute_limit: int = 1 << 20, is_private: bool = True
) -> Iterator[LowerService]:
    """Serve a home; where its domains are private, one tenant has each of them, and all that is learned is written."""
    snapshot = RegistrySnapshot(Registry.open(home), retired_kept_s=0)
    service = LowerService(home, snapshot, FillingSettings(missing, overlay_mb, compute_limit))
    if is_private:
        note_tenants = service.domains.note_tenants
        service.domains.note_tenants = lambda entries: note_tenants(  # type: ignore[method-assign]
            replace(entry, id="acme/any") for entry in entries
        )
        service.domains.note_tenants(snapshot.live())
    try:
        yield service
    finally:
        service.close()
        snapshot.close()


def fresh_rows(count: int) -> list[tuple[str, str]]:
    """Random word soup for all hPLMs in turn: hardly any of its tri-grams is in a table.

    Each test begins with the run's seed, whatever ran before it.
    """
    return [(IDS[i % len(IDS)], " ".join(fresh_words(random.randint(1, 20)))) for i in range(count)]


def fresh_words(count: int) -> list[str]:
    return random.choices(WORDS, k=count)


def ask(service: LowerService, rows: list[tuple[str, str]]) -> list[Float16Array]:
    """One request per row, all in one batch."""
    return ask_with_tickets(service, rows)[0]


def ask_with_tickets(service: LowerService, rows: list[tuple[str, str]]) -> tuple[list[Float16Array], list[Ticket]]:
    requests = [TextRequest([hplm.encode()], [text.encode()], "") for hplm, text in rows]
    results = service.encode(requests)
    assert all(isinstance(result, HiddenRequest) for result in results), results
    hidden = [result for result in results if isinstance(result, HiddenRequest)]
    tickets = [decode_tickets(result.tickets)[0].ticket for result in hidden]
    found = [unfold_rows(each.hidden, [row.num_tokens])[0] for each, row in zip(hidden, tickets, strict=True)]
    return found, tickets


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def counted(service: LowerService, ending: str) -> int:
    return sum(count for (_, level), count in service.domains.hits().items() if level.endswith(ending))


def shortened(service: LowerService) -> int:
    return sum(count for (_, level), count in service.domains.hits().items() if level in SHORTER)
