"""Measured in processes of their own: in an old heap, what lives may lie in holes that others have left."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import numpy as np
import psutil

from backends.trimming import Trimming, trim

_MB = 1_000_000
_SIZE_MB = 200
_LIVE_BYTES, _FREED_BYTES = 2_000, 100_000

Result = TypeVar("Result")


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / _MB


def holes() -> list[np.ndarray]:
    """What stays alive after so much was freed between it, where the C library keeps what was freed."""
    pairs = [(np.ones(_LIVE_BYTES, np.uint8), np.ones(_FREED_BYTES, np.uint8)) for _ in range(_SIZE_MB * 10)]
    return [live for live, _ in pairs]


def measured(measure: Callable[[], Result]) -> Result:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(measure).result()


def more_before_and_after_mb() -> tuple[float, float, bool]:
    start_mb = resident_mb()
    alive = holes()
    before_mb = resident_mb() - start_mb
    trim()
    return before_mb, resident_mb() - start_mb, all(array.sum() == _LIVE_BYTES for array in alive)


def more_while_it_trims_mb() -> tuple[float, bool]:
    start_mb = resident_mb()
    trimming = Trimming(every_s=0.05)
    alive = holes()
    until_s = time.monotonic() + 20
    while resident_mb() - start_mb > _SIZE_MB / 4 and time.monotonic() < until_s:
        time.sleep(0.02)
    more_mb = resident_mb() - start_mb
    trimming.close()
    return more_mb, trimming._thread.is_alive() or not all(array.sum() == _LIVE_BYTES for array in alive)


def test_what_was_freed_between_what_lives_goes_back_and_nothing_else() -> None:
    before_mb, after_mb, is_whole = measured(more_before_and_after_mb)
    assert after_mb < _SIZE_MB / 4 < before_mb
    assert is_whole


def test_it_trims_by_itself_until_it_is_closed() -> None:
    more_mb, is_wrong = measured(more_while_it_trims_mb)
    assert more_mb < _SIZE_MB / 4 and not is_wrong
