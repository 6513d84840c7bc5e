"""The lines of hPLMs and tenants, against sums of their rows one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_run import HPLMS, random_folder

from loadtest.outcome import Kind
from loadtest.report import breakdown_rows, compared_rows, run_report
from loadtest.results import read_results


@pytest.mark.parametrize("seed", range(3))
def test_every_line_is_that_of_its_rows(tmp_path: Path, seed: int) -> None:
    results = read_results(random_folder(tmp_path / "run", seed))
    requests, planned, lines = results.requests, results.planned, results.summary["by_hplm"]
    assert {line["name"] for line in lines} == set(HPLMS)
    for line in lines:
        rows = [row for row in range(len(requests)) if requests.hplms[row] == line["name"]]
        assert line["planned"] == planned.hplms.tolist().count(line["name"])
        assert line["in_time"] == sum(bool(requests.in_time[row]) for row in rows)
        assert line["rejected"] == sum(requests.kinds[row] == Kind.REJECTED for row in rows)
        assert line["failed"] == sum(requests.kinds[row] == Kind.FAILED for row in rows)
        latencies = [1000 * requests.latency_s[row] for row in rows if requests.answered[row]]
        assert line["p99_ms"] == pytest.approx(np.percentile(latencies, 99))
    shares = [line["attainment"] for line in lines]
    assert shares == sorted(shares)


def test_tenants_are_the_sums_of_their_hplms(tmp_path: Path) -> None:
    summary = read_results(random_folder(tmp_path / "run", 5)).summary
    for tenant in summary["by_tenant"]:
        own = [line for line in summary["by_hplm"] if line["name"].startswith(f"{tenant['name']}/")]
        for name in ("planned", "in_time", "rejected", "failed"):
            assert tenant[name] == sum(line[name] for line in own)
    assert sum(line["planned"] for line in summary["by_tenant"]) == summary["planned"]


def test_the_page_has_the_tables_the_server_and_the_machine(tmp_path: Path) -> None:
    more = {"server": {"upper policy": "das-of-this-run"}, "machine": {"processor": "an abacus"}}
    results = read_results(random_folder(tmp_path / "run", 5, **more))
    html = run_report(results)
    for words in ("By tenant", "By hPLM", "das-of-this-run", "an abacus", *HPLMS):
        assert words in html
    assert len(breakdown_rows(results.summary["by_hplm"])[0]) == 7


def test_a_comparison_names_what_differs_and_gives_no_ratio_of_unequal_lengths(tmp_path: Path) -> None:
    first = read_results(random_folder(tmp_path / "a", 1, server={"upper policy": "fcfs"}))
    second = read_results(random_folder(tmp_path / "b", 2, server={"upper policy": "das"}))
    rows = {row[0]: row[1:] for row in compared_rows(first, second)}
    assert rows["server: upper policy"] == ("fcfs", "das", "–")
    assert rows["planned"][2] != "–"
    second.summary["duration_s"] *= 2  # type: ignore[index]
    rows = {row[0]: row[1:] for row in compared_rows(first, second)}
    assert rows["planned"][2] == "–" and rows["latency, p50"][2] != "–"
