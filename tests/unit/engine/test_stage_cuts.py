"""Roots of three layers in two stages: what one leaves in a stage is for the other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.engine.settings import EngineSettings
from backends.engine.slotted_layers import StackSettings
from backends.engine.stage_cuts import DeviceMemoryError, StageCuts
from backends.home import Home
from backends.scheduling.settings import Capacity
from backends.stack_key import StackKey

# On disk a weight has two bytes, in fp32 four.
ROOT: Any = SimpleNamespace(upper_bytes=150, fingerprint="7f", geometry=SimpleNamespace(num_upper_layers=3))
FIRST, SECOND, THIRD = (StackKey(name) for name in ("first", "second", "third"))


def cuts_of(folder: Path, device_memory: int | None) -> StageCuts:
    stack = StackSettings(dtype="fp32", stages=2, device_memory=device_memory)
    return StageCuts(Home(folder), EngineSettings(stack, Capacity(), 2))


def test_roots_are_cut_where_each_stage_has_room(tmp_path: Path) -> None:
    cuts = cuts_of(tmp_path, 300)
    first = cuts.cut(FIRST, ROOT)
    second = cuts.cut(SECOND, ROOT)
    assert {first, second} == {(1, 3), (2, 3)}
    assert cuts.slowest_share(FIRST, ROOT) == pytest.approx(2 / 3)
    with pytest.raises(DeviceMemoryError, match=r"of each stage 0\.0 MB are left in the fullest"):
        cuts.cut(THIRD, ROOT)
    cuts.release(FIRST)
    assert cuts.cut(THIRD, ROOT) == first


def test_the_slowest_stage_is_that_of_the_cut_in_force(tmp_path: Path) -> None:
    """Two large layers of one root leave room for one layer of the next there."""
    cuts = cuts_of(tmp_path, 2_000)
    even: Any = SimpleNamespace(upper_bytes=600, fingerprint="8", geometry=SimpleNamespace(num_upper_layers=4))
    uneven: Any = SimpleNamespace(upper_bytes=900, fingerprint="9", geometry=SimpleNamespace(num_upper_layers=3))
    assert cuts.cut(FIRST, uneven) in ((1, 3), (2, 3))
    assert cuts.slowest_share(SECOND, even) == pytest.approx(1 / 2)
    assert cuts.cut(SECOND, even, slots_bytes=600) in ((1, 4), (3, 4))
    assert cuts.slowest_share(SECOND, even) == pytest.approx(3 / 4)
