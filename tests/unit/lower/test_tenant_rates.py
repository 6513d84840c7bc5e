"""Rows and bytes a second of a tenant, counted by several processes."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import pytest

from backends.lower.shared_buckets import SharedBuckets
from backends.lower.tenant_rates import TenantRates
from backends.registry.quotas import Quota, TenantQuota
from backends.scheduling.rejection import Rejection
from seeds import SEED

S = 1_000_000


def rates(path: Path, **quota: float) -> TenantRates:
    return TenantRates({"acme": TenantQuota("acme", 7, Quota(**quota))}, path / "buckets")  # type: ignore[arg-type]


def test_a_second_is_worth_as_many_rows_as_the_quota_says(tmp_path: Path) -> None:
    counted = rates(tmp_path, rows_per_s=10.0)
    assert [counted.admit("acme", 1, 5, 100 * S) is None for _ in range(12)] == [True] * 10 + [False] * 2
    error = counted.admit("acme", 5, 5, 100 * S)
    assert error is not None and (error.reason, error.retry_after_ms) == (Rejection.TENANT_QUOTA, 500)
    assert str(error).startswith("this tenant has sent as much as it may (quota rows_per_s = 10) {")
    assert counted.admit("acme", 5, 5, 100 * S + S // 2) is None
    assert counted.admit("globex", 10**6, 10**9, 100 * S) is None


def test_any_stream_gets_its_rate_in_the_long_run(tmp_path: Path) -> None:
    rng, counted = random.Random(SEED), rates(tmp_path, rows_per_s=40.0, bytes_per_s=1e9)
    admitted, now_us = 0, 0
    while now_us < 200 * S:
        now_us += int(rng.expovariate(200 / S))
        rows = rng.choice([1, 2, 16])
        admitted += rows if counted.admit("acme", rows, 1, now_us) is None else 0
    assert admitted == pytest.approx(200 * 40, rel=0.02)


def test_bytes_are_counted_and_a_rejected_request_counts_for_nothing(tmp_path: Path) -> None:
    counted = rates(tmp_path, rows_per_s=10.0, bytes_per_s=1000.0)
    assert counted.admit("acme", 1, 900, S) is None
    error = counted.admit("acme", 1, 300, S)
    assert error is not None and "quota bytes_per_s = 1000" in str(error) and error.retry_after_ms == 200
    assert [counted.admit("acme", 1, 0, S) is None for _ in range(10)] == [True] * 9 + [False]


def test_a_request_beyond_a_second_is_owed(tmp_path: Path) -> None:
    counted = rates(tmp_path, rows_per_s=2.0)
    assert counted.admit("acme", 16, 1, S) is None
    assert [counted.admit("acme", 1, 1, S + after * S) is None for after in (1, 7, 8)] == [False, False, True]
    slow = TenantRates({"slow": TenantQuota("slow", 8, Quota(rows_per_s=0.5))}, tmp_path / "buckets")
    assert [slow.admit("slow", 1, 1, S + after * S) is None for after in (0, 1, 2)] == [True, False, True]


def test_what_a_server_before_a_restart_of_the_machine_left_counts_for_nothing(tmp_path: Path) -> None:
    counted = rates(tmp_path, rows_per_s=1.0)
    assert counted.admit("acme", 16, 1, 10**12) is None
    assert counted.admit("acme", 1, 1, 5 * S) is None


def _count(path: Path, admitted: multiprocessing.Queue[int]) -> None:
    counted = rates(path, rows_per_s=300.0)
    admitted.put(sum(counted.admit("acme", 1, 1, S) is None for _ in range(2000)))
    counted.close()


def test_processes_count_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    admitted: multiprocessing.Queue[int] = context.Queue()
    processes = [context.Process(target=_count, args=(tmp_path, admitted)) for _ in range(3)]
    for process in processes:
        process.start()
    assert sum(admitted.get(timeout=30) for _ in processes) == 300
    for process in processes:
        process.join()


def test_a_file_that_cannot_be_opened_leaves_buckets_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    buckets = SharedBuckets(tmp_path / "link")
    with buckets.locked(3) as pair:
        pair.used = (5.0, 1.0)
    with buckets.locked(3) as pair:
        assert pair.used == (5.0, 1.0)
    buckets.close()
