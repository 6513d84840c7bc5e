"""The loads, the dealing, what is foretold and the figures of `bench.stages`."""

from __future__ import annotations

import numpy as np
import pytest

from bench.kit.stages.foretold import foretold_s
from bench.kit.stages.loads import SHAPES, Load, drawn
from bench.kit.stages.ways import POOL, PROCESSES, REPLICAS, SIMPLE, STAGES, RowTimes, to_the_first_free
from bench.stages import Cell, figures_of, rows_of

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
    simple = foretold_s(SIMPLE, load, one)
    assert simple == pytest.approx(ROW_S * (1 + r / 2 / (2 * (1 - r / 2))), rel=0.05)
    stages = foretold_s(STAGES, load, RowTimes(ROW_S, ROW_S / 2))
    assert stages == pytest.approx(ROW_S * (1 + r / 4 / (2 * (1 - r / 2))), rel=0.05)
    pool = foretold_s(POOL, load, RowTimes(ROW_S / 2, ROW_S / 2))
    assert pool == pytest.approx(ROW_S / 2 * (1 + r / 2 / (2 * (1 - r / 2))), rel=0.05)
    assert pool < foretold_s(REPLICAS, load, one) < stages < simple


def test_figures_are_ratios_within_turns() -> None:
    alone_s = {SIMPLE: 0.010, STAGES: 0.0112, PROCESSES: 0.0108, POOL: 0.006, REPLICAS: 0.010}

    def cells(stages: float, pool: float, foretold_pool: float) -> list[Cell]:
        means = {SIMPLE: (2.0, 2.0), STAGES: (stages, 1.0), PROCESSES: (0.8, 1.0), POOL: (pool, foretold_pool)}
        means[REPLICAS] = (0.9, 0.9)
        return [Cell(64, "cv3", way, mean, 2 * mean, told, alone_s[way]) for way, (mean, told) in means.items()]

    played = [*cells(1.0, 0.5, 0.4), *cells(1.0, 0.5, 0.4), *cells(0.5, 0.5, 0.4)]
    figures = figures_of(played, 0.0)
    assert figures["stages_over_simple_cv3_64"] == 2.0
    assert figures["stage_processes_over_simple_cv3_64"] == 2.5
    assert figures["pool_over_stages_cv3_64"] == 2.0
    assert figures["winner_foretold"] == 1.0
    assert figures["hop_us_per_row"] == pytest.approx(1_200)
    assert figures["hop_us_per_row_processes"] == pytest.approx(800)
    assert figures_of(cells(1.0, 0.5, 0.95), 0.0)["winner_foretold"] == 0.0
    rows = list(rows_of(played))
    assert [row["way"] for row in rows] == [SIMPLE, STAGES, PROCESSES, POOL, REPLICAS]
    assert rows[0]["mean ms"] == 2_000 and rows[0]["p99 ms"] == 4_000
