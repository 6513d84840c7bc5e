"""Plans: that memory is kept to, that nothing is split for splitting's sake, and that the words say why."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from builder.placement.planner import baselines as baselines_module
from builder.placement.planner.baselines import baselines, everywhere, replicated
from builder.placement.planner.group import Device
from builder.placement.planner.group_simulator import GroupSimulator
from builder.placement.planner.model import Model
from builder.placement.planner.plan import Plan
from builder.placement.planner.plan_picture import draw_plan
from builder.placement.planner.planner import Fleet, plan
from builder.placement.planner.problem import Problem
from builder.placement.planner.replacing import replaced
from builder.placement.planner.replan import replan
from builder.placement.planner.search import best_selection
from builder.placement.planner.selection import Selection
from builder.placement.planner.slices import slices_of
from builder.placement.planner.traffic import Traffic
from placement_cases import devices, gamma_traffic, model_of, random_problem


def fleet_of(models: Sequence[Model], where: tuple[Device, ...], traffic: Traffic) -> Fleet:
    return Fleet(tuple(models), where, {model.root: model.root for model in models}, traffic)


def attainment(made: Plan, name: str) -> float | None:
    return next(each.attainment for each in made.alternatives if each.name == name)


def bursty(models: Sequence[Model], load: float, num_devices: int, seed: int, duration_s: float = 120.0) -> Traffic:
    """Gamma arrivals of CV 4, equal rates, deadlines of five times what a row takes."""
    rate = load * num_devices * 1e6 / sum(model.busy_us for model in models)
    patience_us = [5 * model.alone_us for model in models]
    return gamma_traffic([rate] * len(models), 4.0, duration_s, patience_us, np.random.default_rng(seed))


def test_where_everything_fits_everywhere_all_stand_everywhere(seed: int) -> None:
    chance = random.Random(seed)
    for number in range(5):
        problem = random_problem(chance)
        roomy = tuple(replace(device, memory_bytes=10_000) for device in problem.devices)
        made = plan(fleet_of(problem.models, roomy, problem.traffic), seed=number)
        assert made.verdict == "all everywhere, no stages"
        assert attainment(made, "this plan") == attainment(made, "all everywhere")
        assert {group.shape.num_devices for group in made.groups} == {1}
        assert all(set(group.roots) == set(made.roots) for group in made.groups)
        assert "stages would only cost" in made.decisions[0]


def test_a_large_fleet_on_which_everything_fits_is_not_cut_in_cells() -> None:
    """Its roots would be dealt to the cells."""
    models = [model_of(f"r{number}", 12_000, 48) for number in range(20)]
    made = plan(fleet_of(models, devices(80, hosts=10), bursty(models, 0.1, 20, seed=1, duration_s=2.0)))
    assert made.verdict == "all everywhere, no stages"
    assert attainment(made, "this plan") == attainment(made, "all everywhere")
    assert all(len(group.roots) == 20 for group in made.groups) and len(made.groups) == 80


def test_one_device_holds_what_it_can() -> None:
    models = [model_of(f"r{number}", 120_000, 480) for number in range(3)]
    made = plan(fleet_of(models, devices(1), bursty(models, 0.3, 1, seed=1)))
    assert made.verdict == "no stages: 1 device with 2 replicas"
    assert sum("stands nowhere" in line for line in made.decisions) == 1


def test_a_root_larger_than_a_device_is_cut_in_stages() -> None:
    models = [model_of("large", 120_000, 1_800), model_of("small", 120_000, 240)]
    made = plan(fleet_of(models, devices(4), bursty(models, 0.3, 4, seed=3)))
    assert {group.shape.stages for group in made.groups_of("large")} <= {2, 3, 4}
    assert made.groups_of("large") and made.groups_of("small")
    assert any("'large' fits on no single device" in line for line in made.decisions)
    assert "stages" in made.verdict
    assert attainment(made, "all everywhere") is None


def test_small_devices_and_bursts_are_what_stages_are_for(seed: int) -> None:
    """Memory for 1.5 of 8 roots on each of 8 devices: without stages a burst finds one device."""
    models = [model_of(f"r{number}", 120_000, 640, halves=32) for number in range(8)]
    made = plan(fleet_of(models, devices(8), bursty(models, 0.3, 8, seed)))
    own, without = attainment(made, "this plan"), attainment(made, "selective replication")
    assert own is not None and without is not None and own > without + 0.05
    assert any(line.startswith("Without stages, by selective replication") for line in made.decisions)
    assert {name for group in made.groups for name in group.roots} == {model.root for model in models}


def test_roots_that_delay_others_stand_apart_although_all_fit() -> None:
    """Batches of the slow root last longer than requests for the quick one may wait."""
    models = [model_of("quick", 12_000, 120), model_of("slow", 600_000, 120, full_batch_us=600_000)]
    traffic = gamma_traffic([20.0, 1.0], 1.0, 120.0, [100_000, 6_000_000], np.random.default_rng(2))
    made = plan(fleet_of(models, devices(4), traffic))
    assert made.verdict.startswith("no stages: 4 devices")
    assert not any(set(group.roots) == {"quick", "slow"} for group in made.groups)
    assert any("they share no device" in line for line in made.decisions)
    own, pooled = attainment(made, "this plan"), attainment(made, "all everywhere")
    assert own is not None and pooled is not None and own > pooled


def test_a_root_larger_than_any_group_is_an_error() -> None:
    models = [model_of("huge", 120_000, 6_000)]
    with pytest.raises(InvalidArgumentError, match="root 'huge' takes 6,000 bytes and fits on no group"):
        plan(fleet_of(models, devices(4), bursty(models, 0.3, 4, seed=1)))
    plan(fleet_of(models, devices(12), bursty(models, 0.3, 4, seed=1)))
    with pytest.raises(InvalidArgumentError, match="fits on no group"):
        plan(fleet_of(models, devices(12, hosts=6), bursty(models, 0.3, 4, seed=1)))


def test_a_root_without_requests_stands_nowhere_if_it_is_larger_than_any_group() -> None:
    models = [model_of("base", 120_000, 960), model_of("huge", 120_000, 6_000)]
    made = plan(fleet_of(models, devices(4), bursty(models[:1], 0.3, 4, seed=1)))
    assert {name for group in made.groups for name in group.roots} == {"base"}
    assert any("'huge' stands nowhere: it fits on no group of these devices" in line for line in made.decisions)


def test_what_does_not_fit_anywhere_is_named() -> None:
    models = [model_of(f"r{number}", 120_000, 960) for number in range(3)]
    made = plan(fleet_of(models, devices(2), bursty(models, 0.2, 2, seed=1)))
    missing = set(made.roots) - {name for group in made.groups for name in group.roots}
    assert len(missing) == 1
    assert any(
        f"'{min(missing)}' stands nowhere" in line and "by servers that load it first" in line
        for line in made.decisions
    )


def test_nothing_to_plan_is_an_error() -> None:
    models = [model_of("r", 120_000, 960)]
    traffic = bursty(models, 0.2, 2, seed=1)
    for bad, complaint in (
        (fleet_of(models, (), traffic), "no device"),
        (fleet_of([], devices(2), traffic), "no root"),
        (fleet_of(models, devices(2), Traffic.of_models([], [])), "no requests"),
    ):
        with pytest.raises(InvalidArgumentError, match=complaint):
            plan(bad)


def test_baselines_keep_to_the_memory_and_are_never_better(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(6):
        problem = random_problem(chance)
        found = best_selection(problem)
        for name, selection in baselines(problem).items():
            if selection is None:
                assert name == "all everywhere"
                continue
            for frame, held in zip(selection.frames, selection.held, strict=True):
                shape = problem.forms.shape(frame.num_stages)
                sizes = problem.forms.stage_bytes[shape, sorted(held)].sum(axis=0)
                assert (sizes <= 1_000).all()
            played = GroupSimulator(problem.traffic, problem.forms.times).play(selection.groups)
            covers = selection.models == set(range(len(problem.models)))
            assert not covers or played.attainment <= found.played.attainment + 0.002


def test_placing_anew_gains_where_traffic_moves_and_moves_take_time() -> None:
    """Two roots, of which a device holds one; each is asked for half of the time, by more than one device answers."""
    models = (model_of("early", 120_000, 600), model_of("late", 120_000, 600))
    halves = [np.arange(0, 60_000_000, 70_000), np.arange(60_000_000, 120_000_000, 70_000)]
    problem = Problem(models, devices(2), Traffic.of_models(halves, [600_000] * 2))
    static = GroupSimulator(problem.traffic, problem.forms.times).play(replicated(problem).groups).attainment
    free, timed = replaced(problem, None), replaced(problem, 60)
    assert static < 0.7 and free == 1.0
    # Four loads of 10 s, on both devices at both changes: nothing is answered meanwhile, the rest as before.
    assert timed == pytest.approx(1 - 20 / 120, abs=0.02)
    assert replaced(problem, 10**9) == pytest.approx(1.0, abs=0.01)


def test_dedicated_gives_the_busy_root_more_devices() -> None:
    models = (model_of("busy", 120_000, 960), model_of("large", 120_000, 1_800))
    traffic = gamma_traffic([20.0, 1.0], 1.0, 60.0, [600_000] * 2, np.random.default_rng(1))
    selection = baselines(Problem(models, devices(5), traffic))["dedicated"]
    assert selection is not None
    assert sorted((group.num_stages, sorted(group.models)) for group in selection.groups) == [
        (1, [0]),
        (1, [0]),
        (1, [0]),
        (2, [1]),
    ]


def test_a_large_fleet_is_planned_in_cells() -> None:
    """72 devices of 9 hosts: a root that makes almost all of the work stands in both cells."""
    models = [model_of(f"r{number}", 12_000, 640) for number in range(12)]
    where = devices(72, hosts=9)
    rates = [2_500.0, *[15.0] * 11]
    traffic = gamma_traffic(rates, 1.0, 1.0, [60_000] * 12, np.random.default_rng(1))
    made = plan(fleet_of(models, where, traffic))
    hosts = {device.name: device.host for device in where}
    assert {name for group in made.groups for name in group.roots} == set(made.roots)
    assert {hosts[group.devices[0]] for group in made.groups_of("r0")} & {"h8"}
    assert len({hosts[group.devices[0]] for group in made.groups_of("r0")}) > 1
    own = attainment(made, "this plan")
    assert own is not None and own > 0.98


@pytest.mark.parametrize("num_devices", [4, 72])
def test_baselines_are_made_once(num_devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells have some of their own, of fewer devices."""
    models = [model_of(f"r{number}", 12_000, 640) for number in range(4)]
    where = devices(num_devices, hosts=num_devices // 4)
    fleet = fleet_of(models, where, bursty(models, 0.3, num_devices, seed=1, duration_s=2.0))
    made: list[int] = []

    def counted(problem: Problem) -> Selection:
        made.append(len(problem.devices))
        return replicated(problem)

    monkeypatch.setattr(baselines_module, "replicated", counted)
    first = plan(fleet)
    assert made.count(num_devices) == 1
    made.clear()
    replan(fleet, first)
    assert made.count(num_devices) == 1


def test_the_same_question_has_the_same_answer() -> None:
    models = [model_of(f"r{number}", 120_000, 640) for number in range(4)]
    fleet = fleet_of(models, devices(4), bursty(models, 0.3, 4, seed=1))
    assert plan(fleet, seed=5) == plan(fleet, seed=5)
    other = fleet_of(models, devices(4, memory_bytes=1_001), fleet.traffic)
    assert fleet.checksum() != other.checksum()


def test_training_and_held_out_requests_are_different_ones(seed: int) -> None:
    models = [model_of(f"r{number}", 120_000, 640) for number in range(4)]
    traffic = bursty(models, 0.3, 4, seed)
    # Each request is known by its patience, which no other has.
    known = Traffic(traffic.arrived_us, traffic.models, traffic.arrived_us + np.arange(len(traffic)) + 10**6)
    slices = slices_of(known, seed)
    assert slices.held_out is not None
    patience = [set((part.deadlines_us - part.arrived_us).tolist()) for part in (slices.training, slices.held_out)]
    assert patience[0] and patience[1] and not patience[0] & patience[1]
    assert slices_of(traffic.within(0, 1), seed).held_out is None
    together = Traffic(np.zeros(300, np.int64), np.arange(300) % 4, np.full(300, 10**6))
    assert slices_of(together, seed).held_out is None, "what was not kept apart judges nothing"


def test_the_picture_has_every_device_and_root() -> None:
    models = [model_of("large <1>", 120_000, 1_800), model_of("small", 120_000, 240)]
    made = plan(fleet_of(models, devices(12, hosts=2), bursty(models, 0.2, 12, seed=3)))
    svg = draw_plan(made)
    for name in [*(device.name for device in made.devices), "h0", "h1", "small", "large &lt;1&gt;", "dedicated"]:
        assert f">{name}<" in svg
    assert everywhere(Problem(tuple(models), devices(2), bursty(models, 0.1, 2, 1))).num_replicas == 4
