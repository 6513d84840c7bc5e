"""The fewest devices for a target: what is tried, what counts as enough, and the words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from backends.errors import InvalidArgumentError, TargetMissedError
from builder.placement.planner import fewest as fewest_module
from builder.placement.planner.explaining_fewest import enough_lines, missed_line
from builder.placement.planner.fewest import fewest
from builder.placement.planner.group import Device
from builder.placement.planner.model import Model
from builder.placement.planner.placeable import NoRoomError
from builder.placement.planner.planner import Draft, Fleet, draft, plan
from builder.placement.planner.target import Target
from builder.placement.planner.traffic import Traffic
from builder.placement.planner.tried import Tried
from builder.progress import Report, Step
from placement_cases import devices, gamma_traffic, model_of

SMALL = model_of("small", 12_000, 120)
Counts = list[int]


def fleet_of(models: Sequence[Model], where: tuple[Device, ...], traffic: Traffic) -> Fleet:
    return Fleet(tuple(models), where, {model.root: model.root for model in models}, traffic)


def steady(rates: Sequence[float], seed: int = 1, duration_s: float = 30.0) -> Traffic:
    """Poisson arrivals at these rates, each with 60 ms to be answered."""
    return gamma_traffic(rates, 1.0, duration_s, [60_000] * len(rates), np.random.default_rng(seed))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """The numbers of devices that are tried, in order."""
    counts: Counts = []

    def noted(fleet: Fleet, seed: int, report: Report, loads: Sequence[float]) -> Draft:
        counts.append(len(fleet.devices))
        return draft(fleet, seed, report, loads)

    monkeypatch.setattr(fewest_module, "draft", noted)
    return counts


@pytest.fixture
def enough_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Counts]:
    """Let this number of devices and more meet every target, and fewer none; return the numbers tried."""

    def prepared(least: int) -> Counts:
        counts: Counts = []

        def noted(drafted: Draft) -> Tried:
            counts.append(len(drafted.fleet.devices))
            return Tried(counts[-1], (float(counts[-1] >= least),))

        monkeypatch.setattr(fewest_module, "_tried", noted)
        return counts

    return prepared


def test_the_plan_of_the_fewest_devices_is_that_of_as_many() -> None:
    fleet = fleet_of([SMALL], devices(8), steady([200.0]))
    made = fewest(fleet, Target(99))
    count = len(made.devices)
    assert 2 < count < 8 and made.devices == fleet.devices[:count]
    alone = plan(replace(fleet, devices=fleet.devices[:count]))
    assert (made.groups, made.alternatives, made.problem) == (alone.groups, alone.alternatives, alone.problem)
    assert made.verdict == f"{count} of 8 devices are enough for 99 % on time; {alone.verdict}"
    assert made.decisions[4:] == alone.decisions
    own, fewer = made.alternatives[0], plan(replace(fleet, devices=fleet.devices[: count - 1])).alternatives[0]
    assert own.attainment is not None and own.held_out is not None and min(own.attainment, own.held_out) >= 0.99
    assert fewer.attainment is not None and fewer.held_out is not None and min(fewer.attainment, fewer.held_out) < 0.99


@pytest.mark.parametrize(
    ("least", "total", "counts"),
    [
        (1, 64, [1]),
        (2, 64, [1, 2]),
        (3, 64, [1, 2, 4, 3]),
        (20, 64, [1, 2, 4, 8, 16, 32, 24, 20, 18, 19]),
        (64, 64, [1, 2, 4, 8, 16, 32, 64, 48, 56, 60, 62, 63]),
        (5, 6, [1, 2, 4, 6, 5]),
        (6, 6, [1, 2, 4, 6, 5]),
        (1, 1, [1]),
    ],
)
def test_the_number_doubles_and_is_halved(
    least: int, total: int, counts: Counts, enough_from: Callable[[int], Counts]
) -> None:
    made = enough_from(least)
    fleet = fleet_of([SMALL], devices(total), steady([20.0], duration_s=1.0))
    assert len(fewest(fleet, Target(99)).devices) == least
    assert made == counts and (least == 1 or least - 1 in made)


def test_one_device_may_be_enough(tried: Counts) -> None:
    made = fewest(fleet_of([SMALL], devices(64), steady([10.0])), Target(90))
    assert made.verdict.startswith("1 of 64 devices is enough for 90 % on time; ") and tried == [1]
    assert made.decisions[0].startswith("The first device in the order listed: ")
    assert not any("too few" in line for line in made.decisions)


def test_devices_are_taken_in_their_order() -> None:
    """The first ones are small: of the large ones that come last a single one would do."""
    small, large = devices(2, memory_bytes=200), [Device(f"l{number}", 2_000, "other") for number in range(2)]
    models = [model_of(f"r{number}", 12_000, 120) for number in range(3)]
    fleet = fleet_of(models, (*small, *large), steady([2.0] * 3))
    made = fewest(replace(fleet, stage_counts=(1,)), Target(90))
    assert [device.name for device in made.devices] == ["d0", "d1", "l0"]
    turned = fewest(replace(fleet, devices=fleet.devices[::-1], stage_counts=(1,)), Target(90))
    assert [(device.name, device.host) for device in turned.devices] == [("l1", "other")]


def test_a_number_with_which_a_root_stands_nowhere_is_too_few() -> None:
    """97 % of the requests would be on time with one device, and none of the other root's."""
    models = [model_of("large", 12_000, 900), model_of("small", 12_000, 200)]
    fleet = fleet_of(models, devices(4), steady([9.7, 0.3], duration_s=120.0))
    alone = plan(replace(fleet, devices=fleet.devices[:1])).alternatives[0]
    assert alone.attainment is not None and alone.attainment > 0.95
    made = fewest(fleet, Target(95))
    assert len(made.devices) == 2
    assert made.decisions[1] == "1 device is too few: 'small' stands nowhere."
    with pytest.raises(TargetMissedError) as caught:
        fewest(replace(fleet, devices=fleet.devices[:1]), Target(95))
    message, _, hint = str(caught.value).partition("; ")
    assert message.startswith("1 device is too few for 95 % on time: the best is 9")
    assert message.endswith("and 'small' stands nowhere")
    assert hint == "more devices, or some with more memory, may help"


def test_a_number_without_room_is_too_few(tried: Counts) -> None:
    fleet = fleet_of([model_of("cut", 12_000, 2_400)], devices(4), steady([5.0]))
    made = fewest(fleet, Target(50))
    assert len(made.devices) == 3 and tried == [1, 2, 4, 3]
    assert made.decisions[1].startswith("2 devices are too few: root 'cut' takes 2,400 bytes and fits on no group of")
    with pytest.raises(NoRoomError, match="root 'cut' takes 2,400 bytes and fits on no group"):
        fewest(replace(fleet, devices=fleet.devices[:2]), Target(50))


def test_a_target_out_of_reach_is_an_error(tried: Counts) -> None:
    fleet = fleet_of([SMALL], devices(3), steady([400.0]))
    with pytest.raises(TargetMissedError) as caught:
        fewest(fleet, Target(99.5))
    message, _, hint = str(caught.value).partition("; ")
    assert message.startswith("3 devices are too few for 99.5 % on time: the best is ") and tried == [1, 2, 3]
    assert "of the held-out requests" in message and "that the search saw" in message
    assert hint == "more devices or longer --deadlines may help"


def test_the_best_number_may_be_a_smaller_one() -> None:
    """More devices do not help where each request takes longer than it may."""
    said = missed_line(Target(99), Tried(16, (0.8, 0.793)), 256)
    assert said == (
        "256 devices are too few for 99 % on time: the best is 79.3 % of the held-out requests (80.0 % of the requests "
        "that the search saw), with 16 devices; longer --deadlines may help"
    )


def test_few_requests_are_judged_without_held_out_ones() -> None:
    fleet = fleet_of([SMALL], devices(4), steady([10.0], duration_s=5.0))
    assert len(fleet.traffic) < 200
    made = fewest(fleet, Target(90))
    assert "of the requests are on time, and there are too few to hold some out" in made.decisions[0]
    late = replace(fleet, traffic=replace(fleet.traffic, deadlines_us=fleet.traffic.arrived_us))
    with pytest.raises(TargetMissedError, match=r"the best is 0\.0 % of all requests, as there are too few to hold"):
        fewest(late, Target(90))
    with pytest.raises(InvalidArgumentError, match="too few requests to hold some out"):
        fewest(fleet, Target(90), loads=(1.0, 2.0))


def test_each_try_is_a_phase() -> None:
    steps: list[Step] = []
    made = fewest(fleet_of([SMALL], devices(8), steady([200.0])), Target(99), report=steps.append)
    notes = {step.phase: step.note for step in steps if step.done == step.total}
    assert list(notes)[:2] == ["try 1 of 8 devices", "try 2 of 8 devices"]
    assert f"try {len(made.devices)} of 8 devices" in notes
    assert all(note.endswith(" % on time") for note in notes.values())


def test_only_the_last_plan_is_drawn_over_the_load() -> None:
    made = fewest(fleet_of([SMALL], devices(8), steady([200.0])), Target(99), loads=(0.5, 1.0))
    assert [load for load, _ in made.alternatives[0].over_load] == [0.5, 1.0]


@pytest.mark.parametrize("percent", [0.0, -1.0, 100.01, float("nan"), float("inf")])
def test_impossible_targets_are_rejected(percent: float) -> None:
    with pytest.raises(InvalidArgumentError, match="--target is a percentage above 0 and at most 100, not"):
        Target(percent)


def test_a_target_is_met_whatever_floats_make_of_it() -> None:
    assert Target(99.9).is_met_by(999 / 1000) and Target(100).is_met_by(1.0) and Target(55.1).is_met_by(0.551)
    assert not Target(100).is_met_by(0.99999999) and not Target(99.9).is_met_by(0.8)
    assert [str(Target(percent)) for percent in (99.0, 99.5, 99.9999999, 100.0)] == [
        "99 %",
        "99.5 %",
        "99.9999999 %",
        "100 %",
    ]


def test_shares_are_told_apart() -> None:
    enough, fewer = Tried(8, (0.999512, 0.9996)), Tried(7, (0.999511, 0.9996))
    first, second, *_ = enough_lines(Target(99.95), enough, fewer)
    assert "99.9512 %" in first and "99.9511 %" in second
    first, *_ = enough_lines(Target(99.95), enough, Tried(7, (0.9, 0.8)))
    assert "99.95 %" in first
    assert "the best is 99.9 % of the requests that the search saw (99.9 % of" in missed_line(Target(100), fewer, 8)
