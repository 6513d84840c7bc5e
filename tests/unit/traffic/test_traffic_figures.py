"""Figures of recorded traffic against slow sums over lists, and what becomes of several files, gaps and bad ones."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from traffic_cases import BEGAN_US, HPLMS, Plain, S, drawn, write

from backends.errors import CorruptFileError, FileError, NotFoundError
from backends.traffic.records import ACCEPTED, OUTCOMES
from backends.wire import LEVELS
from builder.traffic.figures import By, groups, summary, variation
from builder.traffic.picture import draw_rates, sparkline
from builder.traffic.traffic import read_traffic


def test_figures_are_those_of_slow_sums(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = [drawn(rng, 300, BEGAN_US, 50 * S) for _ in range(2)]
    for number, rows in enumerate(files):
        write(tmp_path / f"{number}.traffic", rows, BEGAN_US, BEGAN_US + 50 * S)
    traffic = read_traffic(tmp_path)
    figures = summary(traffic)
    every = [row for rows in files for row in rows]
    firsts = [row for row in every if row[-1]]
    outcomes = Counter(OUTCOMES[row[5]] for row in firsts)
    times = sorted(row[0] for row in firsts)
    gaps = [after - before for before, after in pairwise(times)]
    assert (figures["requests"], figures["rows"]) == (600, sum(row[2] for row in every))
    assert figures["tokens"] == sum(row[3] for row in every)
    assert figures["accepted"] == outcomes.pop(ACCEPTED) and figures["failed"] == outcomes.pop("failed")
    assert figures["rejected"] == dict(outcomes)
    assert figures["levels"] == dict(Counter(LEVELS[row[6]] for row in firsts))
    assert (figures["recorded_s"], figures["rate_per_s"]) == (50.0, 12.0)
    assert figures["cv"] == pytest.approx(statistics.pstdev(gaps) / statistics.mean(gaps), abs=1e-3)
    assert figures["peak_per_s"] == max(Counter(time // S for time in times).values())
    assert figures["without_deadline"] == sum(row[4] == 0 for row in firsts)
    lengths = sorted(row[3] / row[2] for row in every for _ in range(row[2]))
    assert figures["tokens_per_row"]["mean"] == pytest.approx(statistics.mean(lengths), abs=0.01)
    assert figures["tokens_per_row"]["p50"] == pytest.approx(lengths[-(-len(lengths) // 2) - 1], abs=0.01)
    assert figures["tokens_per_row"]["max"] == pytest.approx(lengths[-1], abs=0.01)
    assert figures["deadline_ms"]["max"] == pytest.approx(max(row[4] for row in firsts) / 1e3, abs=0.01)


@pytest.mark.parametrize("by", By)
def test_groups_are_those_of_slow_sums(tmp_path: Path, seed: int, by: By) -> None:
    rng = random.Random(seed)
    rows = drawn(rng, 400, BEGAN_US, 20 * S)
    write(tmp_path / "a.traffic", rows, BEGAN_US, BEGAN_US + 20 * S)
    requests: dict[str, set[int]] = {}
    counts: dict[str, Counter[str]] = {}
    request = 0
    for row in rows:
        request += row[-1]
        name = by.of(HPLMS[row[1]])
        requests.setdefault(name, set()).add(request)
        counts.setdefault(name, Counter()).update(rows=row[2], tokens=row[3])
    found = {group[by.value]: group for group in groups(read_traffic(tmp_path), by)}
    assert {name: (group["requests"], group["rows"], group["tokens"]) for name, group in found.items()} == {
        name: (len(requests[name]), counts[name]["rows"], counts[name]["tokens"]) for name in counts
    }
    assert sum(group["share"] for group in found.values()) == pytest.approx(1, abs=1e-5)
    assert sum(group["rows"] for group in found.values()) == sum(row[2] for row in rows)


def test_a_time_in_which_nothing_was_recorded_is_neither_a_gap_nor_a_lull(tmp_path: Path) -> None:
    def even(began_us: int) -> list[Plain]:
        return [(began_us + number * S, 0, 1, 5, 0, 0, 0, 1) for number in range(10)]

    later_us = BEGAN_US + 3600 * S
    write(tmp_path / "a.traffic", even(BEGAN_US), BEGAN_US, BEGAN_US + 10 * S)
    write(tmp_path / "b.traffic", even(later_us), later_us, later_us + 10 * S)
    traffic = read_traffic(tmp_path)
    figures = summary(traffic)
    assert (figures["recorded_s"], figures["rate_per_s"], figures["cv"]) == (20.0, 1.0, 0.0)
    line = sparkline(traffic)
    assert line[0] == line[-1] == "█" and set(line[1:-1]) == {" "}
    before = traffic.between(None, BEGAN_US + 5 * S)
    assert (summary(before)["requests"], summary(before)["recorded_s"]) == (5, 5.0)
    assert summary(traffic.between(later_us + 100 * S, None))["requests"] == 0


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_the_variation_of_drawn_gaps_is_found(cv: float, seed: int) -> None:
    gaps_s = np.random.default_rng(seed).gamma(1 / cv**2, cv**2 / 50, 40_000)
    times_us = BEGAN_US + (1e6 * gaps_s.cumsum()).astype(np.int64)
    spans_us = np.array([[BEGAN_US, times_us[-1]]])
    assert variation(times_us, spans_us) == pytest.approx(cv, rel=0.06)


def test_requests_of_one_moment_and_of_none_have_figures(tmp_path: Path) -> None:
    write(tmp_path / "a.traffic", [], BEGAN_US, BEGAN_US + S)
    figures = summary(read_traffic(tmp_path))
    assert (figures["requests"], figures["rate_per_s"], figures["cv"], figures["tokens_per_row"]) == (
        0,
        0.0,
        None,
        None,
    )
    assert groups(read_traffic(tmp_path), By.TENANT) == []
    assert "<svg" in draw_rates(read_traffic(tmp_path), By.TENANT)
    write(tmp_path / "b.traffic", [(BEGAN_US, 0, 1, 5, 0, 0, 0, 1)] * 3, BEGAN_US, BEGAN_US)
    assert summary(read_traffic(tmp_path))["cv"] is None


def test_files_that_cannot_be_read_are_named_and_the_others_count(tmp_path: Path) -> None:
    write(tmp_path / "b.traffic", drawn(random.Random(1), 10, BEGAN_US, S), BEGAN_US, BEGAN_US + S)
    (tmp_path / "a.traffic").write_bytes(b"something else entirely")
    with (tmp_path / "b.traffic").open("ab") as file:
        file.write(b"x" * 100)
    traffic = read_traffic(tmp_path)
    assert summary(traffic)["requests"] == 10
    foreign, damaged = traffic.complaints
    assert foreign.endswith("a.traffic is no recorded traffic")
    assert "b.traffic is damaged after" in damaged and "no block begins" in damaged


def test_a_folder_without_any_traffic_says_how_to_record_some(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NotFoundError, match="`hplm serve --record-traffic` records it"):
            read_traffic(folder)
    (tmp_path / "a.traffic").write_bytes(b"nothing of ours")
    with pytest.raises(FileError, match="is no recorded traffic") as caught:
        read_traffic(tmp_path)
    assert isinstance(caught.value, CorruptFileError)


def test_a_picture_shows_the_busiest_three(tmp_path: Path, seed: int) -> None:
    write(tmp_path / "a.traffic", drawn(random.Random(seed), 100, BEGAN_US, 9 * S), BEGAN_US, BEGAN_US + 9 * S)
    svg = draw_rates(read_traffic(tmp_path), By.HPLM)
    assert all(hplm.id in svg for hplm in HPLMS)
    assert svg.count("<polyline") >= 3 and "nan" not in svg
