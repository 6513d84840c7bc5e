"""`hplm quota`, on a copy of the tiny home."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from backends.home import Home


def test_quotas_from_setting_to_removal(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    def quota(*arguments: str) -> str:
        return run_hplm("quota", *arguments, "--home", tiny_home.path)

    assert quota("set", "acme", "--rows-per-s", "100", "--weight", "3") == "acme: weight 3, rows_per_s 100\n"
    assert quota("set", "acme", "--hplms", "9") == "acme: weight 3, rows_per_s 100, hplms 9\n"
    assert quota("set", "acme", "--jobs-per-day", "5").endswith(", jobs_per_day 5\n")
    (shown,) = json.loads(quota("show", "--json"))
    assert json.loads(quota("show", "acme", "--json")) == [shown]
    assert shown == {
        "tenant": "acme", "weight": 3.0, "rows_per_s": 100.0, "bytes_per_s": None, "waiting_rows": None, "hplms": 9,
        "upload_bytes": None, "running_jobs": None, "jobs_per_day": 5,
    }  # fmt: skip
    assert quota("remove", "acme", "weight", "hplms", "jobs_per_day") == "acme: rows_per_s 100\n"
    quota("set", "acme", "--waiting-rows", "9")
    assert quota("remove", "acme", "waiting-rows") == "acme: rows_per_s 100\n"
    assert quota("remove", "acme") == "acme: no quota\n"
    assert json.loads(quota("show", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "acme"), "name at least one quota to set"),
        (("set", "acme", "--weight", "0"), "a weight is 0.001 to 1000, not 0"),
        (("remove", "acme"), "tenant 'acme' has no quota"),
        (("remove", "acme", "speed"), "quota 'speed' is not one of weight"),
    ],
)
def test_wrong_commands_about_quotas_get_one_line(
    run_hplm: Callable[..., str], tiny_home: Home, arguments: tuple[str, ...], message: str
) -> None:
    printed = run_hplm("quota", *arguments, "--home", tiny_home.path)
    assert printed.startswith(f"hplm: {message}")
    assert "\n" not in printed
