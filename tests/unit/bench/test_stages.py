"""The loads, the dealing, what is foretold and the figures of `bench.stages`."""

from __future__ import annotations

import numpy as np
import pytest

from bench.kit.stages.foretold import foretold_mean_s
from bench.kit.stages.loads import SHAPES, Load, drawn
from bench.kit.stages.ways import POOL, PROCESSES, REPLICAS, SIMPLE, STAGES, RowTimes, to_the_first_free, ways
from bench.stages import QUICK, Cell, figures_of, in_turn, loads_in_rows, rows_of

ROW_S = 0.02


def test_loads_have_their_rates_shares_and_bursts(seed: int) -> None:
    for name, shape in SHAPES.items():
        load = drawn(shape, 50.0, 20_000, np.random.default_rng(seed))
        assert len(load.times_s) == 20_000 and (np.diff(load.times_s) >= 0).all()
        assert len(load.times_s) / load.times_s[-1] == pytest.approx(50.0, rel=0.15), name
        assert np.mean(load.roots == 1) == pytest.approx(shape.shares[1], abs=0.06), name
        gaps = np.diff(load.times_s[load.roots == 0])
        assert gaps.std() / gaps.mean() == pytest.approx(shape.cv, rel=0.15), name


def test_replicas_are_asked_in_the_order_in_which_they_are_free() -> None:
    load = Load(np.array([0.0, 0.001, 0.002, 0.5]), np.array([0, 0, 0, 1]))
    assert to_the_first_free(load, 0.01).tolist() == [0, 1, 0, 1]


def test_queues_are_foretold_as_theory_has_them() -> None:
    """M/D/1 for each root, and a pipeline without overhead (AlpaServe, section 3.4)."""
    load, r = drawn(SHAPES["poisson"], 1.2 / ROW_S, 200_000, np.random.default_rng(1)), 1.2
    one = RowTimes(ROW_S, ROW_S)
    simple = foretold_mean_s(SIMPLE, load, one)
    assert simple == pytest.approx(ROW_S * (1 + r / 2 / (2 * (1 - r / 2))), rel=0.05)
    stages = foretold_mean_s(STAGES, load, RowTimes(ROW_S, ROW_S / 2))
    assert stages == pytest.approx(ROW_S * (1 + r / 4 / (2 * (1 - r / 2))), rel=0.05)
    pool = foretold_mean_s(POOL, load, RowTimes(ROW_S / 2, ROW_S / 2))
    assert pool == pytest.approx(ROW_S / 2 * (1 + r / 2 / (2 * (1 - r / 2))), rel=0.05)
    assert pool < foretold_mean_s(REPLICAS, load, one) < stages < simple


def test_batches_are_foretold_from_the_times_of_few_and_of_many_rows() -> None:
    """Rows that come at once: the first one is computed alone, then 64 in the time of a full batch, then the rest."""
    times, further_s = RowTimes(ROW_S, ROW_S / 4), ROW_S * (64 / 4 - 1) / 63
    at_once = Load(np.zeros(128), np.zeros(128, np.int64))
    ends_s = [ROW_S, ROW_S + 64 * ROW_S / 4, ROW_S + 64 * ROW_S / 4 + ROW_S + 62 * further_s]
    expected = np.average(ends_s, weights=[1, 64, 63])
    assert foretold_mean_s(SIMPLE, at_once, times, 64) == pytest.approx(expected, rel=0.001)
    far_apart = Load(np.arange(50) * 10 * ROW_S, np.zeros(50, np.int64))
    for way in (SIMPLE, STAGES, PROCESSES, POOL, REPLICAS):
        assert foretold_mean_s(way, far_apart, times, 64) == pytest.approx(ROW_S, rel=0.01), way


def cell_of(way: str, mean_rows: float, alone_s: float = ROW_S, batch: int = 64) -> Cell:
    times = (alone_s, ROW_S / 4, ROW_S)
    return Cell(batch, 0, "cv3", way, 2 * ROW_S, 2.2 * ROW_S, mean_rows, 2 * mean_rows, *times)


def test_figures_are_ratios_within_turns() -> None:
    alone_s = {SIMPLE: ROW_S, STAGES: ROW_S + 0.0012, PROCESSES: ROW_S + 0.0008, POOL: ROW_S / 2, REPLICAS: ROW_S}

    def cells(stages: float, pool: float) -> list[Cell]:
        means = {SIMPLE: 2.0, STAGES: stages, PROCESSES: 0.8, POOL: pool, REPLICAS: 0.9}
        return [cell_of(way, mean, alone_s[way]) for way, mean in means.items()]

    played = [*cells(1.0, 0.5), *cells(1.0, 0.5), *cells(0.5, 0.5)]
    foretold_rows = [2.0, 1.0, 1.0, 0.4, 0.9] * 3
    figures = figures_of(played, foretold_rows, 0.0)
    assert figures["stages_over_simple_cv3_64"] == 2.0
    assert figures["stage_processes_over_simple_cv3_64"] == 2.5
    assert figures["pool_over_stages_cv3_64"] == 2.0
    assert figures["winner_foretold"] == 1.0
    assert figures["hop_us_per_row"] == pytest.approx(1_200)
    assert figures["hop_us_per_row_processes"] == pytest.approx(800)
    assert figures["row_ms_one_core"] == pytest.approx(2e3 * ROW_S)
    assert figures["row_drift"] == pytest.approx(0.1)
    assert figures_of(cells(1.0, 0.5), [2.0, 1.0, 1.0, 0.95, 0.9], 0.0)["winner_foretold"] == 0.0
    rows = list(rows_of(played, foretold_rows))
    assert [row["way"] for row in rows] == [SIMPLE, STAGES, PROCESSES, POOL, REPLICAS]
    assert rows[0]["mean in rows"] == 2 and rows[0]["p99 in rows"] == 4


def test_what_rows_took_is_foretold_for_a_machine_as_fast_as_it_was_meanwhile() -> None:
    """A row took twice as long when requests came as when the times were measured."""
    alone = Load(np.array([0.0, 100.0]), np.zeros(2, np.int64))
    assert cell_of(STAGES, 1.0, alone_s=1.5 * ROW_S, batch=1).foretold_rows(alone) == pytest.approx(1.5)
    assert cell_of(SIMPLE, 1.0, alone_s=1.5 * ROW_S, batch=1).foretold_rows(alone) == pytest.approx(1.0)


def test_loads_of_a_turn_are_the_same_again() -> None:
    first, again, other = (loads_in_rows(QUICK, 1, number, 7) for number in (0, 0, 1))
    for traffic in SHAPES:
        assert (first[traffic].times_s == again[traffic].times_s).all()
        assert (first[traffic].times_s != other[traffic].times_s).any()


def test_each_way_comes_early_and_late_but_simple_is_always_first() -> None:
    orders = [[way.name for way in in_turn(ways(0, 1), number)] for number in range(4)]
    assert {order[0] for order in orders} == {SIMPLE}
    for position in range(1, 5):
        assert {order[position] for order in orders} == {STAGES, PROCESSES, POOL, REPLICAS}
