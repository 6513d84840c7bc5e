"""`hplm fleet` with a real server that hangs: the other one answers, and the hanging one is replaced."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest

from backends.home import Home
from served_fleet import Fleet, Load, export, fleet_of_two

pytestmark = [pytest.mark.server, pytest.mark.long]
NOTICED_S = 3.0
"""Half a second on an idle machine; from then on no request goes to the server that hangs."""
HELD_S = 15.0
"""For a request that it held: two seconds until the server counts as hung, its end, and an answer elsewhere."""
ANSWERED_S = 5.0
"""For any other one, beside a server that starts."""


@pytest.fixture
def fleet(tiny_home: Home) -> Iterator[Fleet]:
    export(tiny_home)
    with fleet_of_two(tiny_home) as fleet:
        yield fleet


def test_a_server_that_hangs_is_replaced_and_the_other_one_answers(fleet: Fleet) -> None:
    before = {each["server"]: each["pid"] for each in fleet.servers()}
    with Load(fleet.urls) as load:
        time.sleep(2)
        first = max(fleet.servers(), key=lambda each: each["requests"])
        hangs(fleet, load, first["server"], psutil.Process(first["pid"]))
        assert load.outcomes.keys() == {"answered"}, f"those that it held, too: {load.outcomes}\n{fleet.said()}"
        second = next(each for each in fleet.servers() if each["server"] != first["server"])
        hangs(fleet, load, second["server"], upper_model(second["pid"]))
        time.sleep(1)
    # Triton itself gives up on requests that a model has not taken yet, a second after the model was stopped.
    failed = load.outcomes.keys() - {"answered"}
    assert failed <= {"ServerError: Stub process 'hplm_upper_0_0' is not healthy."}, f"{load.outcomes}\n{fleet.said()}"
    after = fleet.servers()
    assert [(each["state"], each["restarts"]) for each in after] == [("ready", 1)] * 2
    assert all(each["pid"] != before[each["server"]] for each in after)


def upper_model(pid: int) -> psutil.Process:
    """The process of a server's upper model; the server itself goes on, and still takes requests."""
    return next(each for each in psutil.Process(pid).children() if "hplm_upper" in " ".join(each.cmdline()))


def hangs(fleet: Fleet, load: Load, server: str, process: psutil.Process) -> None:
    process.suspend()
    stopped_s = time.monotonic()
    fleet.wait_until_restarted(server)
    restarted_s = time.monotonic()
    assert not process.is_running(), "it is ended, not left behind"
    said = [line for line in fleet.said().splitlines() if f"{server}: " in line]
    assert any(f"(process {process.pid}) is stopped" in line for line in said), said
    since = [each for each in list(load.asked) if each.ended_s > stopped_s and each.sent_s < restarted_s]
    held = [each for each in since if each.sent_s < stopped_s + NOTICED_S]
    others = [each for each in since if each.sent_s >= stopped_s + NOTICED_S]
    assert max(each.took_s for each in held) < HELD_S
    assert len(others) > 20 and {each.outcome for each in others} == {"answered"}, "the other server answers meanwhile"
    assert max(each.took_s for each in others) < ANSWERED_S
