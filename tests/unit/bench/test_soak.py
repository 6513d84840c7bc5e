"""`bench.soak`: what grows shows, what fills before does not, and an outcome is judged by what was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.kit.footprint import Footprint
from bench.kit.soak.faults import faults
from bench.kit.soak.growth import Look, folder_bytes, growth, num_restarts
from bench.kit.soak.load import num_failed, num_wrong
from bench.soak import FULL, Course

MB = 1_000_000
HELD = Footprint({"hplm_upper_0_0": 500 * MB}, {"hplm_upper_0_0": 400 * MB}, 40, 100, 3, 3 * MB)


def look(minute: float, rss_mb: float = 500, threads: int = 40) -> Look:
    return Look(minute, replace(HELD, rss_bytes_of={"hplm_upper_0_0": round(rss_mb * MB)}, threads=threads), 7)


def course(looks: Sequence[Look]) -> Course:
    return Course(FULL, 100.0, list(looks), outcomes=Counter(grpc_answered=90, grpc_internal=3))


def test_a_leak_shows_in_its_process_and_in_all() -> None:
    found = growth([look(minute, 500 + 2 * minute, 40 + minute // 10) for minute in range(60)])
    assert found["rss_mb_per_hour"] == found["hplm_upper_0_0_rss_mb_per_hour"] == pytest.approx(120)
    assert found["pss_mb_per_hour"] == found["hplm_upper_0_0_pss_mb_per_hour"] == pytest.approx(0, abs=1e-6)
    assert (found["threads_more"], found["files_more"], found["shared_mb_more"]) == (5, 0, 0)


def test_threads_that_come_and_go_are_no_growth() -> None:
    looks = [look(minute, threads=46 if minute % 3 == 2 else 40) for minute in range(60)]
    assert looks[-1].held.threads > looks[0].held.threads
    assert growth(looks)["threads_more"] == 0


def test_what_fills_in_the_first_half_or_settles_is_no_growth() -> None:
    found = course([look(minute, 500 + 3 * min(minute, 69)) for minute in range(120)]).figures()
    assert found["rss_mb_per_hour"] == pytest.approx(0, abs=1e-6)
    assert found["restarts_quiet"] == found["failed_quiet"] == 0
    assert found["failed_faulty"] == 3


def test_an_interrupted_run_has_figures_without_slopes() -> None:
    for looks in ([], [look(1), look(2)]):
        found = course(looks).figures()
        assert "rss_mb_per_hour" not in found and found["requests_faulty"] == 93


def test_another_tritonserver_or_none_is_a_restart() -> None:
    looks = [look(0), replace(look(1), triton_pid=None), replace(look(2), triton_pid=8), replace(look(3), triton_pid=8)]
    assert num_restarts(looks) == 2


def test_outcomes_are_judged_by_what_was_asked() -> None:
    right = Counter(grpc_answered=5, deadline_unavailable=4, impatient_given_up=3, unknown_not_found=2)
    right += Counter(passing_not_found=1, passing_answered=1)
    assert (num_failed(right), num_wrong(right)) == (0, 0)
    bad = Counter(grpc_unavailable=1, http_connection_lost=2, unknown_answered=4, passing_internal=8, grpc_wrong=16)
    assert (num_failed(right + bad), num_wrong(right + bad)) == (15, 16)


def test_every_kind_of_fault_comes_before_one_comes_again() -> None:
    found = faults(seed=1)
    first, second = ({str(next(found)) for _ in range(6)} for _ in range(2))
    assert len(first) == 6 and first == second
    assert "tritonserver stopped" in first and "hplm_lower killed" in first


def test_a_file_of_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 1000)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert folder_bytes(tmp_path) == 1000
