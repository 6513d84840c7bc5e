"""`hplm export --missing`: what reaches the configuration of `hplm_lower`, and what is refused."""

from __future__ import annotations

import sys

import pytest

import cli
from backends.deadline_batcher import call_plan_parameters
from backends.home import Home
from builder.export.config import from_text

QUEUE = {"max_waiting": "10000", "max_request_rows": "64"}


def export(monkeypatch: pytest.MonkeyPatch, home: Home, *options: str) -> str | int | None:
    """Run the command in this process; its exit code, or the line that it ends with."""
    monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(home.path), *options])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def parameters(home: Home) -> dict[str, str]:
    """What an export wrote; not what it tells the plugin."""
    written = from_text((home.repository / "hplm_lower" / "config.pbtxt").read_text()).parameters
    return {name: value for name, value in written.items() if name not in call_plan_parameters()}


def test_what_is_missing_is_decided_by_the_export(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (
        "--missing",
        "learn",
        "--overlay-mb",
        "12",
        "--compute-limit",
        "34",
        "--lower-threads",
        "3",
        "--max-text-bytes",
        "500",
        "--stale-limit-s",
        "60",
    )
    assert export(monkeypatch, tiny_home, *options) in (0, None)
    traffic = {"record_traffic": "false", "traffic_days": "30", "traffic_mb": "256"}
    others = {"max_text_bytes": "500", "stale_limit_s": "60", "auth": "off", **traffic}
    filling = {"missing": "learn", "overlay_mb": "12", "compute_limit": "34", "dtype": "bf16", **others}
    assert parameters(tiny_home) == {"home": "..", **filling, **QUEUE, "threads": "3"}
    assert export(monkeypatch, tiny_home) in (0, None)
    filling = {
        "missing": "compute",
        "overlay_mb": "256",
        "compute_limit": "4096",
        "dtype": "bf16",
        "stale_limit_s": "86400",
        "max_text_bytes": "65536",
        "auth": "off",
        **traffic,
    }
    assert parameters(tiny_home) == {"home": "..", **filling, **QUEUE, "threads": "1"}


@pytest.mark.parametrize(
    "options",
    [
        ("--overlay-mb", "0"),
        ("--compute-limit", "0"),
        ("--stale-limit-s", "0"),
        ("--lower-threads", "0"),
        ("--max-text-bytes", "0"),
        ("--max-text-bytes", str((16 << 20) + 1)),
        ("--missing", "guess"),
        ("--slots", "0"),
        ("--slots", "999999999"),
    ],
)
def test_wrong_options_leave_the_old_repository(
    tiny_home: Home, options: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export(monkeypatch, tiny_home, "--missing", "compute") in (0, None)
    assert export(monkeypatch, tiny_home, *options) not in (0, None)
    assert parameters(tiny_home)["missing"] == "compute"
