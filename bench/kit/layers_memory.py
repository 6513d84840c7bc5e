"""What a root's shared layers take in memory, and how long a process needs to make them, by their dtype."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from backends.engine.layers import ServedLayers, served_layers
from backends.engine.precision import precision_of, smoothing_of
from backends.root.store import RootFolder
from backends.trimming import trim

_COPIES = 5
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class LayersMemory:
    """The cost of one root's upper layers on the CPU."""

    size_bytes: float
    made_in_s: float


def layers_memory(root: Path, dtype: str) -> LayersMemory:
    """Measure in a process of its own: what one more copy adds to its resident memory, and the median time."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (root, dtype))


def _measure(root: Path, dtype: str) -> LayersMemory:
    folder = RootFolder(root)
    kept = [_layers(folder, dtype)]  # the first one brings the library's own memory
    before_bytes, seconds = _resident_bytes(), []
    for _ in range(_COPIES):
        began_s = time.perf_counter()
        kept.append(_layers(folder, dtype))
        seconds.append(time.perf_counter() - began_s)
    return LayersMemory((_resident_bytes() - before_bytes) / _COPIES, statistics.median(seconds))


def _layers(root: RootFolder, dtype: str) -> ServedLayers:
    precision = precision_of(dtype, _CPU)
    smoothing = smoothing_of(root) if precision.products == "int8" else None
    return served_layers(root.upper(), root.geometry.activation, precision, _CPU, smoothing)


def _resident_bytes() -> int:
    gc.collect()
    trim()
    return int(psutil.Process().memory_info().rss)
