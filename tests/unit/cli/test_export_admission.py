"""`hplm export`: what it says about waiting reaches `hplm_upper`, and what cannot be is refused."""

from __future__ import annotations

import sys

import pytest

import cli
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.scheduling.settings import AdmissionSettings, ShareSettings
from builder.export.config import from_text


def export(monkeypatch: pytest.MonkeyPatch, home: Home, *options: str) -> str | int | None:
    """Run the command in this process; its exit code, or the line that it ends with."""
    monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(home.path), *options])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def exported(home: Home) -> AdmissionSettings:
    text = (home.repository / "hplm_upper" / "config.pbtxt").read_text()
    return AdmissionSettings.from_model(ModelSettings(home, dict(from_text(text).parameters)))


def test_what_may_wait_is_decided_by_the_export(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert export(monkeypatch, tiny_home) in (0, None)
    assert exported(tiny_home) == AdmissionSettings()
    limits = (
        "--burst-ms",
        "20",
        "--max-waiting",
        "500",
        "--tenant-quota",
        "20",
        "--no-admission",
        "--margin-percent",
        "40",
    )
    assert export(monkeypatch, tiny_home, *limits) in (0, None)
    assert exported(tiny_home) == AdmissionSettings(500, 20, False, 40, ShareSettings(burst_us=20_000.0))


@pytest.mark.parametrize(
    "options",
    [
        ("--max-waiting", "0"),
        ("--tenant-quota", "0"),
        ("--burst-ms", "-1"),
        ("--margin-percent", "-1"),
    ],
)
def test_wrong_options_leave_the_old_repository(
    tiny_home: Home, options: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export(monkeypatch, tiny_home, "--max-waiting", "77") in (0, None)
    assert export(monkeypatch, tiny_home, *options) not in (0, None)
    assert exported(tiny_home).max_waiting == 77
