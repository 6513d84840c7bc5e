import time

import numpy as np
import psutil
import pytest

from backends.trimming import Trimming, trim

_MB = 1_000_000
_LIVE_BYTES, _FREED_BYTES = 2_000, 100_000


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / _MB


def holes(size_mb: int) -> list[np.ndarray]:
    """What stays alive after so much was freed between it, where the C library keeps what was freed."""
    pairs = [(np.ones(_LIVE_BYTES, np.uint8), np.ones(_FREED_BYTES, np.uint8)) for _ in range(size_mb * 10)]
    return [live for live, _ in pairs]


def test_what_was_freed_between_what_lives_goes_back_and_nothing_else() -> None:
    trim()
    before_mb = resident_mb()
    alive = holes(size_mb=200)
    if resident_mb() - before_mb < 100:
        pytest.skip("this C library gives back what is freed by itself")
    trim()
    assert resident_mb() - before_mb < 50
    assert all(array.sum() == _LIVE_BYTES for array in alive)


def test_it_trims_by_itself_until_it_is_closed() -> None:
    trim()
    before_mb = resident_mb()
    trimming = Trimming(every_s=0.05)
    alive = holes(size_mb=200)
    deadline_s = time.monotonic() + 20
    while resident_mb() - before_mb > 50 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert resident_mb() - before_mb < 50
    trimming.close()
    assert all(array.sum() == _LIVE_BYTES for array in alive)
