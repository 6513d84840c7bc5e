"""A ladder of random heads for an hPLM, whole or damaged, and requests that it answers."""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder, write_ladder
from backends.engine.service import UpperService
from backends.errors import CorruptFileError, FingerprintMismatchError, FormatVersionError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.root.store import RootFolder
from backends.storage import file_checksum, read_json, write_json, write_tensors
from backends.wire import Ticket, encode_tickets, fold_rows
from served_engine import HIDDEN, Responses

LENGTHS = [3, 9, 20, 4, 17, 6]


def ladder_of(home: Home, entry: HplmEntry, threshold: float, said: float | None = None) -> Ladder:
    root = RootFolder(home.root("tiny"))
    own = read_artifact(home.path / entry.folder, root.fingerprint).head
    torch.manual_seed(4)
    head = Head(torch.randn(own.weight.shape), torch.randn(own.bias.shape))
    ladder = Ladder(EarlyStep(1, head, 2.0, threshold, reported_temperature=said), 0.5, {"max_drop": 1.0})
    write_ladder(home.path / entry.folder, ladder, root.fingerprint)
    return ladder


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=(length, HIDDEN)).astype(np.float16) for length in LENGTHS]


def ask(service: UpperService, entry: HplmEntry, level: str, deadline_us: int | None = None) -> list[Responses]:
    """One request for each row."""
    pending: list[Responses] = []
    for row in rows():
        ticket = Ticket(entry.key, len(row), False, deadline_us, level=level)
        pending.append(queue.Queue())
        service.submit(fold_rows([row]), encode_tickets([ticket]), [b""], pending[-1].put)
    return pending


def answers(pending: list[Responses]) -> Iterator[dict[str, Any]]:
    for each in pending:
        answered = each.get(timeout=30)
        assert isinstance(answered, list), answered
        yield json.loads(answered[0])


CERTIFIED: dict[str, object] = {
    "a word": {"disagreement": "little"},
    "a list": {"disagreement": [0.1]},
    "no number": {"disagreement": math.nan},
    "too large": {"disagreement": 10**400},
    "no figures": 0.1,
}


def damaged(folder: Path, how: str) -> type[Exception]:
    manifest = read_json(folder / "levels.json")
    manifest.pop("checksum", None)
    if how == "newer":
        write_json(folder / "levels.json", {**manifest, "format_version": 99})
        return FormatVersionError
    if how == "another root":
        write_json(folder / "levels.json", {**manifest, "root_fingerprint": "another"})
        return FingerprintMismatchError
    if how == "endless":
        heads = folder / "exits.safetensors"
        write_tensors(heads, {name: tensor / 0 for name, tensor in load_file(heads).items()})
        write_json(folder / "levels.json", {**manifest, "heads_checksum": file_checksum(heads)})
    elif how == "heads":
        (folder / "exits.safetensors").write_bytes(b"short")
    elif how == "missing":
        (folder / "exits.safetensors").unlink()
    elif how == "text":
        (folder / "levels.json").write_text("{")
    elif how in CERTIFIED:
        write_json(folder / "levels.json", {**manifest, "certified": CERTIFIED[how]})
    else:
        early, full = manifest["ladder"]
        changes = {
            "after": {"after": 7},
            "temperature": {"temperature": -1.0},
            "nan": {"temperature": "nan"},
            "said": {"reported_temperature": 0.0},
        }[how]
        write_json(folder / "levels.json", {**manifest, "ladder": [{**early, **changes}, full]})
    return CorruptFileError
