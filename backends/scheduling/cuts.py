"""Where to cut a stack in stages, so that the slowest stage takes as little as possible.

F(s, k), the slowest of s stages over the first k half layers, is the least over i of max(F(s - 1, i), lat(i, k)):
AlpaServe's recursion. A stage's latency is the sum of its half layers, each profiled once. The planner cuts half
layers; the engine cuts whole ones, in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgumentError

_ATTENTION_SHARE = 1 / 3
"""Of a layer's weights: a feed-forward network of the usual width has twice those of the attention."""

Cut = tuple[int, ...]
"""The half layer before which each stage ends; the last is their number."""


def half_layers(layers: Sequence[int]) -> tuple[int, ...]:
    """Cut each layer's time or size in two: its attention, and its feed-forward network."""
    return tuple(part for whole in layers for part in _parted(whole))


def equal_latency_cuts(
    halves_us: Sequence[int],
    halves_bytes: Sequence[int],
    most_stages: int,
    memory_bytes: int | Sequence[int] | None = None,
) -> Mapping[int, Cut]:
    """Return the best cut for each number of stages that is possible; no stage takes more than the memory, or its own.

    Raises:
        InvalidArgumentError: Times or sizes are missing or below 0, or all times are 0.
    """
    _check(halves_us, halves_bytes)
    rooms = memory_bytes if isinstance(memory_bytes, Sequence) else [memory_bytes] * most_stages
    latency_us = {room: _latencies(halves_us, halves_bytes, room) for room in set(rooms)}
    slowest_us = latency_us[rooms[0]][0]
    begins: list[NDArray[np.int64]] = []
    found: dict[int, Cut] = {}
    for stages in range(1, min(most_stages, len(halves_us)) + 1):
        if stages > 1:
            slower_us = np.maximum(slowest_us[:, None], latency_us[rooms[stages - 1]])
            begins.append(slower_us.argmin(axis=0))
            slowest_us = slower_us.min(axis=0)
        if np.isfinite(slowest_us[-1]):
            found[stages] = _ends(begins, len(halves_us))
    return found


def stage_sums(halves: Sequence[int], cut: Cut) -> tuple[int, ...]:
    """Add up the times or sizes of each stage's half layers."""
    return tuple(sum(halves[begin:end]) for begin, end in zip((0, *cut), cut, strict=False))


def spans_of(cut: Cut) -> tuple[range, ...]:
    """Return what each stage has."""
    return tuple(range(begin, end) for begin, end in zip((0, *cut), cut, strict=False))


def _latencies(halves_us: Sequence[int], halves_bytes: Sequence[int], memory_bytes: int | None) -> NDArray[np.float64]:
    """Return what a stage of the half layers [i, k) takes; infinite where it is empty or too large.

    Shape: [half layers + 1, half layers + 1].
    """
    ends_us = np.concatenate([[0], np.cumsum(halves_us)])
    ends_bytes = np.concatenate([[0], np.cumsum(halves_bytes)])
    latency_us: NDArray[np.float64] = (ends_us[None, :] - ends_us[:, None]).astype(np.float64)
    count = np.arange(len(ends_us))
    latency_us[count[:, None] >= count[None, :]] = np.inf
    if memory_bytes is not None:
        latency_us[ends_bytes[None, :] - ends_bytes[:, None] > memory_bytes] = np.inf
    return latency_us


def _ends(begins: Sequence[NDArray[np.int64]], num_halves: int) -> Cut:
    """Walk back from the last stage."""
    ends = [num_halves]
    for begin in reversed(begins):
        ends.append(int(begin[ends[-1]]))
    return tuple(reversed(ends))


def _parted(whole: int) -> tuple[int, int]:
    attention = round(whole * _ATTENTION_SHARE)
    return attention, whole - attention


def _check(halves_us: Sequence[int], halves_bytes: Sequence[int]) -> None:
    if not len(halves_us) or len(halves_us) != len(halves_bytes):
        raise InvalidArgumentError("a stack has a time and a size for each of its half layers")
    if min(halves_us) < 0 or min(halves_bytes) < 0:
        raise InvalidArgumentError("no half layer takes less than 0 us or 0 bytes")
    if not any(halves_us):
        raise InvalidArgumentError("by its profile no layer takes any time; 'hplm profile' measures it again")
