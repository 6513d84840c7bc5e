"""The settings in force of a rendered repository: the models' own defaults where it names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.engine.gpu_capability import Capability
from backends.errors import CorruptFileError
from backends.scheduling.settings import Capacity
from builder.export.config import from_text
from builder.export.in_force import (
    changes_of_run,
    configurations_of_run,
    effective_settings,
    exported_capacity,
    in_one_line,
    settings_of,
)
from builder.export.of_run import SettingsOfRun
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from cli.export import DeviceOptions, export_settings


def test_what_a_repository_does_not_name_has_its_default(tmp_path: Path) -> None:
    render_repository(tmp_path / "bare", ExportSettings(upper_parameters={"policy": "das"}))
    line = in_one_line(effective_settings(tmp_path / "bare"))
    assert line == (
        "policy das, mode engine, device cpu, dtype bf16, layout ragged, slots 64, max_batch_size 64, max_tokens 4096, "
        "max_waiting 10000, admission true, margin_percent 25, missing compute, compute_limit 4096, overlay_mb 256, "
        "stale_limit_s 86400, processes 1, auth off, record_traffic false"
    )


def test_what_a_batch_may_hold_is_read(tmp_path: Path) -> None:
    assert exported_capacity(tmp_path / "none") == Capacity()
    parameters = {"max_rows": "8", "max_tokens": "512", "slots": "33"}
    render_repository(tmp_path / "small", ExportSettings(upper_parameters=parameters))
    assert exported_capacity(tmp_path / "small") == Capacity(8, 512, 32)
    config = tmp_path / "small" / "hplm_upper" / "config.pbtxt"
    config.write_text(config.read_text().replace('"512"', '"many"'))
    with pytest.raises(CorruptFileError, match="'many'"):
        exported_capacity(tmp_path / "small")


def test_a_plain_export_writes_its_settings_out(tmp_path: Path) -> None:
    render_repository(tmp_path / "plain", export_settings())
    named, found = settings_of(tmp_path / "plain"), effective_settings(tmp_path / "plain")
    assert set(found) - set(named) == {"upper layout"}
    assert named["upper slots"] == found["upper slots"] == "128"


def test_fp32_takes_the_place_of_bf16_where_the_processor_lacks_it(tmp_path: Path) -> None:
    plain, int8 = tmp_path / "plain", tmp_path / "int8"
    render_repository(plain, export_settings())
    render_repository(int8, export_settings(DeviceOptions(dtype="int8")))
    assert changes_of_run(plain, SettingsOfRun(), frozenset({"avx2"})) == {"upper dtype": "fp32", "lower dtype": "fp32"}
    assert changes_of_run(plain, SettingsOfRun(), frozenset({"avx2", "avx512_bf16"})) == {}
    assert changes_of_run(int8, SettingsOfRun("das"), frozenset({"avx2"})) == {"upper policy": "das"}
    lacking = {"upper dtype": "bf16", "lower dtype": "bf16"}, {"upper dtype": "fp32", "lower dtype": "fp32"}
    assert (
        changes_of_run(int8, SettingsOfRun(), frozenset({"avx512_bf16"})),
        changes_of_run(int8, SettingsOfRun(), frozenset()),
    ) == lacking
    changes = changes_of_run(plain, SettingsOfRun("das"), frozenset())
    assert "policy das (of this run), mode engine, device cpu, dtype fp32 (of this run)" in in_one_line(
        effective_settings(plain), changes
    )
    texts = configurations_of_run(plain, changes)
    assert {name: from_text(text).parameters["dtype"] for name, text in texts.items()} == {
        "hplm_lower": "fp32",
        "hplm_upper": "fp32",
    }
    assert configurations_of_run(plain, {}) == {}
    recorded = changes_of_run(plain, SettingsOfRun(record_traffic=True), frozenset({"avx512_bf16"}))
    assert recorded == {"lower record_traffic": "true"}


@pytest.mark.parametrize(
    ("dtype", "capability", "in_force"),
    [
        ("int8", (7, 0), "fp32"),
        ("int8", (8, 0), "int8"),
        ("int8", (7, 5), "int8"),
        ("fp8", (8, 6), "bf16"),
        ("fp8", (8, 9), "fp8"),
        ("fp8", (12, 0), "fp8"),
        ("fp8", None, "fp8"),
        ("bf16", (7, 5), "fp32"),
        ("bf16", (8, 0), "bf16"),
        ("fp32", (7, 0), "fp32"),
    ],
)
def test_another_dtype_takes_the_place_of_what_no_gpu_has(
    tmp_path: Path, dtype: str, capability: Capability | None, in_force: str
) -> None:
    on_gpu, queries = tmp_path / "gpu", []

    def find() -> Capability | None:
        queries.append(dtype)
        return capability

    render_repository(on_gpu, ExportSettings(device="gpu", upper_parameters={"dtype": dtype}))
    changes = changes_of_run(on_gpu, SettingsOfRun(), frozenset({"avx512_bf16"}), find)
    of_run = "" if in_force == dtype else " (of this run)"
    assert f"device gpu, dtype {in_force}{of_run}, " in in_one_line(effective_settings(on_gpu), changes)
    assert len(queries) == (dtype != "fp32"), "the driver takes a moment, so it is asked only where it matters"


def test_nothing_rendered_has_no_settings(tmp_path: Path) -> None:
    assert effective_settings(tmp_path) == {}
    assert changes_of_run(tmp_path, SettingsOfRun(), frozenset()) == {}
