"""Cells of a large fleet: every family and device once, loads even, memory kept to, like cells planned alike."""

from __future__ import annotations

import random

import numpy as np
import pytest

from builder.placement.planner.cells import Families, _dealt, cells_of, plan_in_cells
from builder.placement.planner.group import Device
from builder.placement.planner.traffic import Traffic
from placement_cases import devices, model_of


def families_of(chance: random.Random, count: int, num_models: int) -> Families:
    models = np.array([chance.randrange(num_models) for _ in range(count)])
    peaks = np.array([chance.choice([0.0, 0.1, 0.5, 2.0]) for _ in range(count)]) + 0.01
    return Families(models, peaks, Traffic.of_models([], []))


def test_every_family_and_device_is_in_a_cell(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        hosts = chance.randint(1, 6)
        where = devices(8 * hosts, 10_000, hosts)
        families = families_of(chance, chance.randint(1, 200), 10)
        cells = cells_of(families, [100] * 10, where, most=16)
        assert sorted(place for cell in cells for place in cell.devices) == list(range(8 * hosts))
        assert all(1 <= len(cell.devices) <= 16 for cell in cells)
        total = dict.fromkeys(range(len(families.models)), 0.0)
        for cell in cells:
            for family, share in cell.shares:
                total[family] += share
        np.testing.assert_allclose(list(total.values()), 1)
        for host in {device.host for device in where}:
            of_host = {place for place, device in enumerate(where) if device.host == host}
            assert sum(bool(of_host & set(cell.devices)) for cell in cells) == 1


def test_a_family_larger_than_a_cell_stands_in_several() -> None:
    families = Families(np.array([0, 1]), np.array([9.0, 1.0]), Traffic.of_models([], []))
    cells = cells_of(families, [100, 100], devices(40, 1_000, 5), most=8)
    assert sum(any(family == 0 for family, _ in cell.shares) for cell in cells) == 5
    assert sum(any(family == 1 for family, _ in cell.shares) for cell in cells) == 1


def test_a_large_family_fills_one_cell_after_the_other() -> None:
    requests = Traffic.of_models([np.arange(95_000), np.arange(5_000)], [9, 9])
    families = Families(np.array([0, 1]), np.array([95.0, 5.0]), requests)
    where = devices(9 * 8, 1_000, 9)
    cells = cells_of(families, [100, 100], where, most=64)
    assert [len(cell.devices) for cell in cells] == [64, 8]
    share = {number: dict(cell.shares).get(0, 0.0) for number, cell in enumerate(cells)}
    in_first = 8 / 9 * 100
    assert share[0] == pytest.approx(in_first / 95) and share[1] == pytest.approx(1 - in_first / 95)
    assert [family for family, _ in cells[1].shares] == [0, 1], "what the large one leaves is for the other"
    dealt = [int((traffic.models == 0).sum()) for traffic in _dealt(families, cells, seed=1)]
    assert dealt == pytest.approx([1_000 * in_first, 1_000 * (95 - in_first)], rel=0.03)


def test_a_family_between_a_small_and_a_large_cell_is_split_where_none_has_room() -> None:
    """The large cell is nearly full when it comes, and the small one is smaller than it."""
    families = Families(np.array([0, 1]), np.array([60.0, 12.0]), Traffic.of_models([], []))
    cells = cells_of(families, [100, 100], devices(9 * 8, 1_000, 9), most=64)
    assert [dict(cell.shares) for cell in cells] == [
        {0: 1.0, 1: pytest.approx(1 / 3)},
        {1: pytest.approx(2 / 3)},
    ]


def test_a_large_family_takes_no_more_cells_than_it_needs() -> None:
    """Two cells are filled by 3 % more than their share, rather than a third for the rest of it."""
    families = Families(np.array([0, 1, 2]), np.array([206.0, 98.0, 96.0]), Traffic.of_models([], []))
    cells = cells_of(families, [100] * 3, devices(32, 1_000, 4), most=8)
    assert [dict(cell.shares) for cell in cells] == [{0: 0.5}, {0: 0.5}, {1: 1.0}, {2: 1.0}]


def test_roots_without_any_traffic_that_fit_nowhere_are_dealt_too() -> None:
    families = Families(np.array([0, 1]), np.zeros(2), Traffic.of_models([], []))
    cells = cells_of(families, [5_000, 100_000], devices(16, 1_000, 2), most=8)
    assert sorted(family for cell in cells for family, _ in cell.shares) == [0, 1]


def test_a_root_goes_where_it_fits_on_a_group_and_is_cut_least() -> None:
    """A cell's memory may be enough in all, and that of no device in it."""
    families = Families(np.array([0, 1, 1, 1, 1]), np.ones(5), Traffic.of_models([], []))
    where = [*devices(32, 1_000, 4), *(Device(f"large-{place}", 4_000, "large") for place in range(8))]
    for stage_counts in ((1,), (1, 2, 4)):
        cells = cells_of(families, [3_000, 500], where, most=8, stage_counts=stage_counts)
        assert [family for family, _ in cells[-1].shares] == [0]
    only_small = cells_of(families, [3_000, 500], where[:32], most=8)
    assert any(family == 0 for cell in only_small for family, _ in cell.shares)


def test_roots_stand_side_by_side_while_a_cell_has_room() -> None:
    families = Families(np.array([0, 1] * 20), np.ones(40), Traffic.of_models([], []))
    cells = cells_of(families, [100, 100], devices(16, 1_000, 2), most=8)
    roots = [{int(families.models[family]) for family, _ in cell.shares} for cell in cells]
    assert roots == [{0, 1}, {0, 1}]


def test_all_cells_get_work_before_one_gets_more_than_its_share() -> None:
    """Twenty cells: 5 % more in each would leave one without any."""
    families = Families(np.zeros(8_000, np.int64), np.ones(8_000), Traffic.of_models([], []))
    cells = cells_of(families, [100], devices(160, 1_000, 20), most=8)
    assert {len(cell.shares) for cell in cells} == {400}


def test_a_small_device_beside_a_full_cell_gets_what_it_holds(seed: int) -> None:
    """Eight hosts of large devices are a cell, and a small one is another, on which half of the roots fit."""
    rng = np.random.default_rng(seed)
    where = [*devices(64, 8_000, 8), Device("small", 1_600, "small")]  # the last host by its name, too
    models = [model_of(f"r{number}", 12_000, 2_000 if number % 2 else 400) for number in range(8)]
    arrived = np.sort(rng.integers(20_000_000, size=4_000))
    traffic = Traffic(arrived, rng.integers(400, size=4_000), arrived + 100_000)
    families = Families(np.arange(400) % 8, np.full(400, 0.01), traffic)
    planned = plan_in_cells(models, where, families, seed=1)
    assert sorted(len(each.cell.devices) for each in planned) == [1, 64]
    for each in planned:
        asked = {int(families.models[family]) for family, _ in each.cell.shares}
        assert each.selection.models == asked
        assert len(each.cell.devices) > 1 or asked <= {0, 2, 4, 6}, "larger ones do not fit there"


def test_cells_are_planned_for_their_own_requests(seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = [model_of(f"r{number}", 12_000, 400) for number in range(6)]
    count, num_families = 6_000, 30
    family_of = rng.integers(num_families, size=count)
    arrived = np.sort(rng.integers(20_000_000, size=count))
    traffic = Traffic(arrived, family_of, arrived + 100_000)
    families = Families(np.arange(num_families) % 6, np.full(num_families, 0.1), traffic)
    planned = plan_in_cells(models, devices(16, 1_000, 4), families, seed=1)
    used = [place for each in planned for frame in each.selection.frames for place in frame.devices]
    assert sorted(used) == list(range(16))
    for each in planned:
        asked = {int(families.models[family]) for family, _ in each.cell.shares}
        assert each.selection.models == asked
        assert each.attainment > 0.95
