"""What `hplm gc` does where the machine's clock was set."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from folder_home import AT_ONCE, age

from backends.errors import ConflictError
from backends.home import Home
from backends.registry.registry import Registry
from builder.clock_mark import Clocks, note_clock
from builder.lifecycle.garbage import GarbageSettings, collect_garbage


@dataclass
class MovedClocks:
    """A machine that has run for an hour; its wall clock is set by so much."""

    ran_s: float = 3600.0
    set_by_s: float = 0.0

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: 1e9 + self.ran_s + self.set_by_s, lambda: self.ran_s, lambda: "this start")


@pytest.mark.parametrize("set_by_s", [86_400.0, -86_400.0])
def test_nothing_goes_while_the_clock_was_set_lately(home: Home, registry: Registry, set_by_s: float) -> None:
    machine = MovedClocks()
    note_clock(home, machine.clocks)
    half_built = home.bank("mini", "acme/new", 1).with_name(".acme--new@1.building")
    half_built.mkdir(parents=True)
    way = "forward" if set_by_s > 0 else "back"
    machine.set_by_s = set_by_s
    age(half_built, 86_500.0)  # it looks so old where the clock went forward, and is a minute old
    settings = GarbageSettings()
    for ran_s, left in ((3660.0, "24.0 h"), (45_000.0, "12.5 h"), (90_000.0, "60 s")):
        machine.ran_s = ran_s
        with pytest.raises(ConflictError, match=f"set {way} by 24.0 h, .*works again in {left}, or with shorter"):
            collect_garbage(home, registry, settings, clocks=machine.clocks)
        assert half_built.exists()
    machine.ran_s = 90_061.0
    (removal,) = collect_garbage(home, registry, settings, clocks=machine.clocks).removed
    assert removal.name == half_built.name


def test_a_clock_that_is_corrected_a_little_stops_no_collection(home: Home, registry: Registry) -> None:
    machine = MovedClocks()
    for set_by_s in (0.0, 20.0, -30.0, 40.0):
        machine.set_by_s = set_by_s
        collect_garbage(home, registry, GarbageSettings(), clocks=machine.clocks)
    (home.run / "clock.json").write_text("half a fi")
    collect_garbage(home, registry, GarbageSettings(), clocks=machine.clocks)
    machine.set_by_s = 3600.0
    with pytest.raises(ConflictError, match=r"by 3560 s"):
        collect_garbage(home, registry, GarbageSettings(), clocks=machine.clocks)
    assert collect_garbage(home, registry, AT_ONCE, clocks=machine.clocks).removed == ()
