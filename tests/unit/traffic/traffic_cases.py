"""hPLMs and records for tests of recorded traffic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backends.registry.entries import DomainEntry, HplmEntry
from backends.traffic.recording import Block, Head
from backends.traffic.records import OUTCOMES, RECORD, RecordedHplm, Records
from backends.wire import LEVELS

S = 1_000_000
BEGAN_US = 1_700_000_000 * S
HPLMS = [
    RecordedHplm(f"{tenant}/{name}", "mini", domain)
    for tenant, name, domain in (("acme", "a", "shop"), ("acme", "b", "news"), ("globex", "a", "shop"))
]

Plain = tuple[int, int, int, int, int, int, int, int]
"""A record as a tuple, in the order of `RECORD`: arrived, hPLM, rows, tokens, deadline, outcome, level, is first."""


def entry(id: str, key: int = 1, root: str = "mini", domain: str = "shop") -> HplmEntry:
    return HplmEntry(key, id, 1, "classification", ("a", "b"), DomainEntry(root, domain, 1, ()), "")


def records(arrived_us: Sequence[int], rows: int = 1, tokens: int = 7) -> Records:
    made = np.zeros(len(arrived_us), RECORD)
    made["arrived_us"], made["rows"], made["tokens"], made["is_first"] = arrived_us, rows, tokens, 1
    return made


def drawn(rng: random.Random, count: int, began_us: int, lasts_us: int) -> list[Plain]:
    """Draw the records of some requests, a few of which are to two hPLMs."""
    made: list[Plain] = []
    for _ in range(count):
        at = began_us + rng.randrange(lasts_us)
        deadline_us = rng.choice([0, rng.randrange(1, 10 * S)])
        outcome, level = rng.randrange(len(OUTCOMES)), rng.randrange(len(LEVELS))
        for place, hplm in enumerate(rng.sample(range(len(HPLMS)), rng.choice([1, 1, 1, 2]))):
            rows = rng.randrange(1, 9)
            made.append((at, hplm, rows, rows * rng.randrange(3, 60), deadline_us, outcome, level, int(place == 0)))
    return made


def write(path: Path, rows: list[Plain], began_us: int, until_us: int, process: str = "p") -> None:
    records = np.array([(*row, 0) for row in rows], RECORD)
    head = Head(process, "host", 1, began_us)
    path.write_bytes(head.to_bytes() + Block(records, HPLMS, 0, until_us).to_bytes())
