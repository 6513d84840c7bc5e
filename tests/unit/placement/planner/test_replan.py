"""A plan in place of another: it stays where a change does not pay, and is of the same home and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from backends.errors import FingerprintMismatchError, InvalidArgumentError, NotFoundError
from builder.placement.planner.change import Change, groups_checksum
from builder.placement.planner.group import Device, Group
from builder.placement.planner.hysteresis import Hysteresis
from builder.placement.planner.model import Model
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.plan import Plan
from builder.placement.planner.planner import Fleet, plan
from builder.placement.planner.problem import NO_STAGES
from builder.placement.planner.replan import replan
from placement_cases import devices, gamma_traffic, model_of

MODELS = tuple(model_of(f"r{number}", 120_000, 640) for number in range(4))


def fleet_of(rates_per_s: Sequence[float], models: Sequence[Model] = MODELS, seed: int = 1, count: int = 6) -> Fleet:
    """Devices that hold one root each, asked for 200 s."""
    patience_us = [5 * model.alone_us for model in models]
    traffic = gamma_traffic(rates_per_s, 1.0, 200.0, patience_us, np.random.default_rng(seed))
    fingerprints = {model.root: model.root for model in models}
    return Fleet(tuple(models), devices(count), fingerprints, traffic, 0, (10,) * len(models), NO_STAGES)


def change_of(made: Plan) -> Change:
    assert made.change is not None
    return made.change


def played(change: Change, groups: Sequence[Group]) -> set[Group]:
    for step in change.steps:
        groups = step.after(groups)
    return set(groups)


MONDAY, TUESDAY = (16.0, 4.0, 2.0, 2.0), (2.0, 2.0, 4.0, 16.0)


def test_the_same_traffic_changes_nothing() -> None:
    first = plan(fleet_of(MONDAY))
    for seed in (1, 2):
        made = replan(fleet_of(MONDAY, seed=seed), first)
        assert made.groups == first.groups and not change_of(made).steps
        assert any("stays" in line for line in made.decisions)
        assert change_of(made).previous == groups_checksum(first.groups)


def test_a_root_that_is_asked_more_gets_more_devices() -> None:
    first, tuesday = plan(fleet_of(MONDAY)), fleet_of(TUESDAY)
    made = replan(tuesday, first)
    change = change_of(made)
    assert change.gain_points > 10 and change.gain_requests > 2 * change.cost_requests > 0
    assert change.gain_requests == pytest.approx(change.gain_points / 100 * 24 * 3_600, rel=0.1)
    assert len(made.groups_of("r3")) > len(first.groups_of("r3"))
    assert played(change, first.groups) == set(made.groups)
    assert change.moves.loads == change.moves.reloads == len(change.steps) and change.moves.hplms > 0
    assert {each.name: each.attainment for each in made.alternatives}["as it is placed"] is not None
    assert any(line.endswith("the placement changes.") for line in made.decisions)


def test_a_change_that_is_dear_for_its_time_is_not_made() -> None:
    first, tuesday = plan(fleet_of(MONDAY)), fleet_of(TUESDAY)
    change = change_of(replan(tuesday, first))
    worth_s = 2 * change.cost_requests / change.gain_requests * change.window_s
    for window_s, is_made in ((0.9 * worth_s, False), (1.1 * worth_s, True)):
        made = replan(tuesday, first, Hysteresis(window_s))
        assert bool(change_of(made).steps) == is_made
        assert (made.groups == first.groups) != is_made
        assert any("less than 2 times the cost" in line for line in made.decisions) != is_made
    dear = replan(tuesday, first, Hysteresis(costs=MoveCosts(reload_s=36_000.0)))
    assert not change_of(dear).steps


def test_less_than_a_point_is_no_reason_to_change(seed: int) -> None:
    """A plan changes only where it gains a point, whatever the window, over random traffic."""
    rng, made_any = np.random.default_rng(seed), 0
    first = plan(fleet_of(MONDAY))
    for number in range(8):
        shift = 0.5 * number / 8
        rates = [(1 - shift) * a + shift * b for a, b in zip(MONDAY, TUESDAY, strict=True)]
        made = replan(fleet_of(rates, seed=int(rng.integers(1000))), first, Hysteresis(1e9, MoveCosts(0, 0, 1e18, 0)))
        change = change_of(made)
        assert bool(change.steps) <= (change.gain_points >= 1)
        assert change.steps or made.groups == first.groups
        made_any += bool(change.steps)
    assert made_any < 8


def test_a_placement_that_does_not_fit_any_more_changes() -> None:
    """Two roots share each device, until their hPLMs take twice the memory."""
    small = [model_of(f"r{number}", 120_000, 480) for number in range(2)]
    grown = [model_of(f"r{number}", 120_000, 960) for number in range(2)]
    first = plan(fleet_of((2.0, 2.0), small, count=2))
    assert first.verdict == "all everywhere, no stages"
    made = replan(fleet_of((2.0, 2.0), grown, count=2), first)
    assert change_of(made).steps and any("more memory than the devices have" in line for line in made.decisions)
    assert played(change_of(made), first.groups) == set(made.groups)


def test_a_root_that_outgrows_every_device_changes_a_placement_for_little_gain() -> None:
    """It stands beside the other one, until its hPLMs take more than a device has; hardly anybody asks for it."""
    small = [model_of(f"r{number}", 120_000, 480) for number in range(2)]
    grown = [small[0], model_of("r1", 120_000, 1_100)]
    first = plan(fleet_of((2.0, 0.01), small, count=2))
    made = replan(replace(fleet_of((2.0, 0.01), grown, count=2), stage_counts=(1, 2)), first)
    assert any("more memory than the devices have" in line for line in made.decisions)
    assert [group.shape.stages for group in made.groups] == [2]


def test_stages_that_are_not_wanted_any_more_go(seed: int) -> None:
    """A root that no device holds alone was cut in two; now devices are larger, and no root is to be cut."""
    large = [model_of("r0", 120_000, 1_500)]
    first = plan(replace(fleet_of((2.0,), large, count=2), stage_counts=(1, 2)))
    assert [group.shape.stages for group in first.groups] == [2]
    whole = fleet_of((2.0,), [model_of("r0", 120_000, 480)], seed=seed, count=2)
    made = replan(whole, first)
    assert {group.shape.stages for group in made.groups} == {1}
    assert any("are not wanted any more" in line for line in made.decisions)


def test_a_window_lasts() -> None:
    with pytest.raises(InvalidArgumentError, match="longer --window"):
        Hysteresis(0.0)


def test_other_homes_and_other_devices_are_rejected() -> None:
    fleet = fleet_of(MONDAY)
    first = plan(fleet)
    with pytest.raises(FingerprintMismatchError, match="another root 'r1'"):
        replan(replace(fleet, fingerprints={**fleet.fingerprints, "r1": "other"}), first)
    with pytest.raises(NotFoundError, match="places root 'r3', which this home does not have"):
        replan(fleet_of(MONDAY[:3], MODELS[:3]), first)
    for where, complaint in (
        (devices(5), "the plan has 6 devices of 1,000 bytes on h0, and --devices less --reserve 5 devices of 1,000"),
        (devices(7), "--reserve 7 devices of 1,000 bytes on h0; "),
        ((*devices(5), Device("d5", 2_000, "h0")), "and --devices less --reserve .*1 device of 2,000 bytes on h0; "),
    ):
        with pytest.raises(InvalidArgumentError, match=complaint):
            replan(replace(fleet, devices=where), first)


def test_a_root_that_is_new_gets_its_place() -> None:
    first = plan(fleet_of(MONDAY[:3], MODELS[:3]))
    made = replan(fleet_of((4.0, 2.0, 2.0, 8.0)), first)
    assert made.groups_of("r3") and played(change_of(made), first.groups) == set(made.groups)
