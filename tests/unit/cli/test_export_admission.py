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
    weights = ("--tenant-weight", "acme=3", "--tenant-weight", "globex=0.5", "--burst-ms", "20")
    limits = ("--max-waiting", "500", "--tenant-quota", "20", "--no-admission", "--margin-percent", "40")
    assert export(monkeypatch, tiny_home, *weights, *limits) in (0, None)
    shares = ShareSettings({"acme": 3.0, "globex": 0.5}, 20_000.0)
    assert exported(tiny_home) == AdmissionSettings(500, 20, False, 40, shares)


@pytest.mark.parametrize(
    "options",
    [
        ("--max-waiting", "0"),
        ("--tenant-quota", "0"),
        ("--tenant-weight", "acme"),
        ("--tenant-weight", "acme=-1"),
        ("--tenant-weight", "acme=inf"),
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
