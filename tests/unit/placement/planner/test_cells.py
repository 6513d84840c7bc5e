"""Cells of a large fleet: every family and device once, loads even, memory kept to, like cells planned alike."""

from __future__ import annotations

import random

import numpy as np

from builder.placement.planner.cells import Families, cells_of, plan_in_cells
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


def test_roots_stand_side_by_side_while_a_cell_has_room() -> None:
    families = Families(np.array([0, 1] * 20), np.ones(40), Traffic.of_models([], []))
    cells = cells_of(families, [100, 100], devices(16, 1_000, 2), most=8)
    roots = [{int(families.models[family]) for family, _ in cell.shares} for cell in cells]
    assert roots == [{0, 1}, {0, 1}]


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
