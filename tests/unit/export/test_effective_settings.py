"""The settings in force of a rendered repository: the models' own defaults where it names none."""

from __future__ import annotations

from pathlib import Path

from builder.export.in_force import effective_settings, in_one_line, settings_of
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from cli.export import export_settings


def test_what_a_repository_does_not_name_is_told_with_its_default(tmp_path: Path) -> None:
    render_repository(tmp_path / "bare", ExportSettings(upper_parameters={"policy": "das"}))
    line = in_one_line(effective_settings(tmp_path / "bare"))
    assert line == (
        "policy das, mode engine, device cpu, dtype bf16, layout ragged, slots 64, max_batch_size 64, max_tokens 4096, "
        "max_waiting 10000, admission true, margin_percent 25, missing compute, compute_limit 4096, overlay_mb 256, "
        "processes 2"
    )


def test_a_plain_export_writes_its_settings_out(tmp_path: Path) -> None:
    render_repository(tmp_path / "plain", export_settings())
    named, told = settings_of(tmp_path / "plain"), effective_settings(tmp_path / "plain")
    assert set(told) - set(named) == {"upper layout"}
    assert named["upper slots"] == told["upper slots"] == "128"


def test_nothing_rendered_has_no_settings(tmp_path: Path) -> None:
    assert effective_settings(tmp_path) == {}
