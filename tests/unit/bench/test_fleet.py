"""`bench.fleet`: what its figures are made of, with made-up outcomes, and a device that waits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from backends.engine.loop import ServeLoop
from bench import fleet as fleet_module
from bench.fleet import PARTS, QUICK, Measured, fault_figures, fleet, linear_figures, measure
from bench.kit.drains.clients import ANSWERED, Ended
from bench.kit.fleet.faults import Story
from bench.kit.fleet.hot_tenant import answered_per_s, dealt
from bench.kit.fleet.judgement import Fault, Rate, failed, linearity, rates_of_counts, rates_over_time
from bench.kit.fleet.paced import Pace, paced_loop
from bench.kit.fleet.picture import draw_story
from bench.kit.fleet.real import RealFleet
from bench.kit.fleet.rolling import Operation, Rolled, num_failed
from bench.kit.trials import Trials
from hplm_client import ClientError, NotReadyError, UnavailableError
from loadtest.outcome import Outcome
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule

DEADLINE_MS = 1_000
LOST = UnavailableError("upstream connect error or disconnect/reset before headers")
REJECTED = UnavailableError("predicted to be answered in 1010 ms; the deadline is in 940 ms")


def requests(ends: Sequence[tuple[float, float, ClientError | None]]) -> Requests:
    """Requests by when they were planned, how long they took, and their error."""
    schedule = Schedule.of(Row(at_s, "acme/topic", "two words", DEADLINE_MS) for at_s, _, _ in ends)
    outcomes = [
        Outcome.of(number, at_s, at_s + took_s, error) for number, (at_s, took_s, error) in enumerate(sorted_(ends))
    ]
    return Requests.of(schedule, outcomes)


def sorted_(
    ends: Sequence[tuple[float, float, ClientError | None]],
) -> list[tuple[float, float, ClientError | None]]:
    return sorted(ends, key=lambda end: end[0])


def steady(bad: tuple[float, float], end_s: float = 20.0, per_s: int = 50) -> Requests:
    """A load that is late for a while."""
    times = [number / per_s for number in range(int(end_s * per_s))]
    return requests([(at_s, 5.0 if bad[0] <= at_s < bad[1] else 0.05, None) for at_s in times])


def test_cores_left_are_those_of_the_servers_and_no_more() -> None:
    assert Rate(100.0, 1.0, 2.0, 0.4).cores_left == 1.0
    assert Rate(100.0, 2.0, 2.0, 0.4).cores_left == pytest.approx(1.6)
    assert Rate(160.0, 2.0, 2.0, 0.4).per_core == pytest.approx(100.0)


def test_a_fleet_is_linear_where_each_core_left_answers_as_many() -> None:
    one, both = Rate(100.0, 1.0, 2.0, 0.3), Rate(170.0, 2.0, 2.0, 0.3)
    assert linearity([one], [both]) == pytest.approx(1.0)
    slow = Rate(50.0, 1.0, 2.0, 0.3)
    assert linearity([one, slow, one], [both, both, both]) == pytest.approx(1.0), "one slow turn moves nothing"
    found = linear_figures([one], [both])
    assert found["fleet_linear_2_raw"] == pytest.approx(0.85)
    assert found["fleet_over_one_server"] == pytest.approx(1.7)


def test_a_rejection_by_a_server_is_no_failure_and_an_error_of_the_gateway_is_one() -> None:
    found = requests(
        [(0.0, 0.1, None), (1.0, 0.1, REJECTED), (2.0, 0.1, LOST), (3.0, 0.1, NotReadyError("the server is stopping"))]
    )
    assert failed(found).tolist() == [False, False, True, True]
    assert Fault(found, 1.5).num_failed == 2


@pytest.mark.parametrize(
    ("bad", "recovery_s"),
    [((30.0, 30.0), 0.0), ((5.0, 5.6), 0.6), ((5.0, 8.0), 3.0), ((5.4, 7.0), 2.0), ((5.0, 20.0), math.inf)],
)
def test_a_fault_is_over_once_a_second_is_on_time_as_before(bad: tuple[float, float], recovery_s: float) -> None:
    fault = Fault(steady(bad), 5.0)
    assert fault.recovery_s == pytest.approx(recovery_s, abs=0.041)
    assert fault.before == 1.0
    late_s = max(0.0, min(bad[1], 20.0) - bad[0])
    assert fault.since == pytest.approx(1 - late_s / 15, abs=0.01)


def test_what_is_late_again_after_a_while_is_not_over() -> None:
    """The server that is left fills up only after some seconds."""
    good, bad = [number / 50 for number in range(1_000)], (9.0, 12.0)
    found = requests([(at_s, 5.0 if bad[0] <= at_s < bad[1] else 0.05, None) for at_s in good])
    assert Fault(found, 5.0).recovery_s == pytest.approx(7.0, abs=0.041)


def test_a_fault_is_measured_by_what_was_on_time_before() -> None:
    times = [number / 50 for number in range(1_000)]
    half_late = requests([(at_s, 5.0 if number % 2 else 0.05, None) for number, at_s in enumerate(times)])
    fault = Fault(half_late, 5.0)
    assert (fault.before, fault.recovery_s) == (pytest.approx(0.5), 0.0)


def test_a_load_over_time_keeps_its_number_of_requests(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times_s = rng.uniform(0, 10, 500)
    rates = rates_over_time(times_s, 10.0, 0.25)
    assert len(rates) == 40 and rates.sum() * 0.25 == pytest.approx(500)


def test_a_counter_that_begins_anew_is_no_negative_rate() -> None:
    samples_s = np.arange(0.0, 6.0, 0.5)
    counts = np.concatenate([20 * samples_s[:6], 20 * (samples_s[6:] - 3.0)])
    rates = rates_of_counts(samples_s, counts, np.array([1.25, 2.75, 4.25]))
    assert rates.tolist() == pytest.approx([20.0, 0.0, 20.0])


def test_answers_after_the_end_of_a_load_are_no_part_of_its_rate() -> None:
    found = requests([(0.0, 0.5, None), (3.0, 0.5, None), (3.6, 0.5, None), (3.9, 0.05, REJECTED), (1.0, 2.0, None)])
    assert answered_per_s(found, 4.0) == pytest.approx(2 / 4), "of those on time the third is answered at 4.1 s"


def test_tenants_are_counted_by_the_server_that_they_are_dealt_to(seed: int) -> None:
    hplms = [f"tenant{number}/task" for number in range(20)]
    assert dealt(hplms, ["server-1", "server-2"]) == {"server-1": 12, "server-2": 8}
    many = [f"acme-{seed}-{number}/task" for number in range(2_000)]
    assert all(abs(count - 500) < 100 for count in dealt(many, list("abcd")).values())


ROLLED = Rolled(
    [
        Ended(0.0, 0.1, ANSWERED),
        Ended(9.9, 10.1, ANSWERED),
        Ended(12.0, 12.1, "UnavailableError", "no healthy upstream"),
        Ended(20.5, 20.6, ANSWERED),
        Ended(31.0, 31.1, "ConnectionLostError", "gone"),
    ],
    [Operation("drain", 10.0, 15.0), Operation("rolling", 20.0, 25.0), Operation("drain", 30.0, 32.0)],
    50.0,
)


def test_requests_count_to_what_was_done_while_they_were_under_way() -> None:
    assert [one.sent_s for one in ROLLED.of("drain")] == [9.9, 12.0, 31.0]
    assert [num_failed(ROLLED.of(kind)) for kind in ("drain", "rolling", "upgrade")] == [2, 0, 0]
    row = ROLLED.row("drain")
    assert (row["failed"], row["operations"], row["seconds each"]) == (2, 2, 3.5)
    assert row["first error"] == "UnavailableError: no healthy upstream"


def test_a_paced_device_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pace(0.01, 0.03).batch_s(4) == pytest.approx(0.13)
    computed: list[float] = []
    monkeypatch.setattr(ServeLoop, "compute", lambda *_: computed.append(time.monotonic()))
    loop = object.__new__(paced_loop(0.05, 0.02))
    began = time.monotonic()
    loop.compute(None, type("Batch", (), {"jobs": [1, 2]})())  # type: ignore[arg-type]
    assert computed[0] - began >= 0.09


def test_a_fault_is_drawn_and_said_in_words() -> None:
    fault = Fault(steady((5.0, 5.6)), 5.0)
    sampled_s = np.arange(0.0, 20.0, 0.1)
    sent = {"server-1": 25 * np.minimum(sampled_s, 5.0), "server-2": 25 * sampled_s}
    story = Story("loss", "server-1", fault, 50.0, 12.0, sampled_s, sent)
    drawn = draw_story(story)
    texts = [element.text for element in ElementTree.fromstring(drawn).iter() if element.text]
    assert "server-1 dies" in texts and "ready again" in texts and {"server-1", "server-2"} <= {*texts}
    assert any("0 of 1,000 requests failed, on time for good after 0.58 s" in text for text in texts)
    assert fault_figures(story)["loss_all_servers_s"] == 7.0


def test_each_part_has_a_bar_or_is_only_reported() -> None:
    assert {"loss_failed", "hang_recovery_s", "rolled_failed", "gateway_us", "hot_tenant_points"} <= {*fleet.bars}
    assert len(PARTS) == len(set(PARTS)) == 8


def test_kept_parts_come_back_as_they_were_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = Measured({"z_first": 1.0, "a_second": 2.0}, [{"z": 1, "a": "x", "none": None}], "<svg/>")
    plain = Measured({"loss_free": 3.0}, [])
    started: list[RealFleet] = []

    @contextmanager
    def started_fleet(*_: object) -> Iterator[RealFleet]:
        started.append(object.__new__(RealFleet))
        yield started[-1]

    def loss(*_: object) -> Measured:
        return drawn

    def hot(*_: object) -> Measured:
        return plain

    monkeypatch.setattr(fleet_module, "real_fleet", started_fleet)
    monkeypatch.setattr(fleet_module, "loss", loss)
    monkeypatch.setattr(fleet_module, "hot", hot)
    first, again = (measure(QUICK, ("hot", "loss"), 1, Trials(tmp_path, {"of": "all"})) for _ in range(2))
    assert len(started) == 1
    for measured in (first, again):
        assert list(measured.figures.items()) == [("loss_free", 3.0), ("z_first", 1.0), ("a_second", 2.0)]
        assert [list(row.items()) for row in measured.rows] == [[("z", 1), ("a", "x"), ("none", None)]]
        assert measured.picture == "<svg/>"
