"""What a server held in the course of a long run, and how fast it grows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.kit.footprint import Footprint

_MB = 1e6
_MINUTES = 60
_FEWEST = 12
_END_SHARE = 1 / 6
"""Of the looks; their median stands for the beginning, or the end. Connections of clients' pools come and go."""


@dataclass(frozen=True)
class Look:
    """What was held at a moment; minutes are those of the whole run."""

    minute: float
    held: Footprint
    triton_pid: int | None

    def row(self) -> dict[str, Any]:
        return {
            "RSS MB": self.held.rss_bytes / _MB,
            "PSS MB": self.held.pss_bytes / _MB,
            **{f"{name} MB": size_bytes / _MB for name, size_bytes in sorted(self.held.rss_bytes_of.items())},
            "shared MB": self.held.shared_file_bytes / _MB,
            "threads": self.held.threads,
            "files": self.held.files,
        }


def growth(looks: Sequence[Look]) -> dict[str, float]:
    """Slopes of lines through all looks, and what there is more at their end; nothing where they are too few."""
    if len(looks) < _FEWEST:
        return {}
    names = sorted(set().union(*(look.held.rss_bytes_of for look in looks)))
    slopes = {
        "rss_mb_per_hour": _mb_per_hour(looks, lambda held: held.rss_bytes),
        "pss_mb_per_hour": _mb_per_hour(looks, lambda held: held.pss_bytes),
    }
    for name in names:
        slopes[f"{name}_rss_mb_per_hour"] = _mb_per_hour(looks, partial(_rss_bytes_of, name=name))
        slopes[f"{name}_pss_mb_per_hour"] = _mb_per_hour(looks, partial(_pss_bytes_of, name=name))
    return slopes | {
        "threads_more": _more(looks, lambda held: held.threads),
        "files_more": _more(looks, lambda held: held.files),
        "shared_files_more": _more(looks, lambda held: held.shared_files),
        "shared_mb_more": _more(looks, lambda held: held.shared_file_bytes) / _MB,
    }


def num_restarts(looks: Sequence[Look]) -> int:
    """How often another tritonserver ran than at the look before, or none."""
    return sum(one.triton_pid != before.triton_pid for before, one in pairwise(looks))


def folder_bytes(folder: Path) -> int:
    """Sum up all files, each once, however many names it has; what is removed meanwhile counts or not."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(parent, name))
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def _rss_bytes_of(held: Footprint, name: str) -> int:
    return held.rss_bytes_of.get(name, 0)  # a process may come or go meanwhile


def _pss_bytes_of(held: Footprint, name: str) -> int:
    return held.pss_bytes_of.get(name, 0)


def _mb_per_hour(looks: Sequence[Look], size_bytes: Callable[[Footprint], int]) -> float:
    minutes = [look.minute for look in looks]
    return _MINUTES * float(np.polyfit(minutes, [size_bytes(look.held) / _MB for look in looks], 1)[0])


def _more(looks: Sequence[Look], count: Callable[[Footprint], int]) -> float:
    counts = [count(look.held) for look in looks]
    at_each_end = round(_END_SHARE * len(counts))
    return float(median(counts[-at_each_end:]) - median(counts[:at_each_end]))
