"""`hplm export --mode triton`: which cost model the deadline batcher is given, and what is said of those it is not."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

import cli
from backends.engine import precision
from backends.engine.settings import EngineSettings
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.root.store import RootFolder
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import CostProfile, Measured, write_profile
from builder.export.config import from_text
from builder.export.cost_model import dearest_cost_model
from builder.export.settings import ExportSettings

CHEAP = CostModel(100.0, 20.0, 3.0, 0.01, 5.0)
DEAR = CostModel(50.0, 10.0, 9.0, 0.0, 0.0)
"""A small batch takes less than with the cheap one, a full one more."""
NONE = CostModel(0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture(autouse=True)
def multiplies_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bf16 and fp32 differ on any processor."""
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: True)


def measured_here(home: Home, root: str, dtype: str = "bf16") -> Measured:
    engine = EngineSettings.from_model(ModelSettings(home, {"dtype": dtype}), "cpu")
    return engine.measured(RootFolder(home.root(root)))


def profile(home: Home, root: str, model: CostModel, measured: Measured | None = None) -> None:
    found = CostProfile(model, measured or measured_here(home, root), "2", 40, 3.0)
    write_profile(home.profile(root), found)


def export(monkeypatch: pytest.MonkeyPatch, home: Home, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(home.path), *options])
    try:
        cli.main()
    except SystemExit as stop:
        assert not stop.code, stop.code


def exported(home: Home) -> CostModel | None:
    """As the plugin reads it; None where an export writes nothing about costs."""
    parameters = from_text((home.repository / "hplm_upper" / "config.pbtxt").read_text()).parameters
    names = [field.name for field in dataclasses.fields(CostModel)]
    if not any(f"cost_{name}" in parameters for name in names):
        return None
    return CostModel(*(float(parameters[f"cost_{name}"]) for name in names))


def test_the_stored_model_reaches_the_plugin(
    tiny_home: Home, built_plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(tiny_home, "tiny", CHEAP)
    export(monkeypatch, tiny_home, "--mode", "triton", "--plugin", str(built_plugin))
    assert exported(tiny_home) == CHEAP
    assert not capsys.readouterr().err
    export(monkeypatch, tiny_home)
    assert exported(tiny_home) is None, "the engine reads the home, not the export"


def test_a_model_that_does_not_hold_is_left_out_in_one_line(
    tiny_home: Home, built_plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--mode", "triton", "--plugin", str(built_plugin))
    export(monkeypatch, tiny_home, *options)
    assert exported(tiny_home) == NONE
    assert capsys.readouterr().err == "root tiny has no cost model to end batches by; see 'hplm profile'\n"

    profile(tiny_home, "tiny", CHEAP)
    export(monkeypatch, tiny_home, *options, "--dtype", "fp32")
    assert exported(tiny_home) == NONE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the cost model of root tiny is left out")
    assert "was measured with dtype 'bf16', not 'fp32'" in line

    elsewhere = dataclasses.replace(measured_here(tiny_home, "tiny"), device="another machine's processor")
    profile(tiny_home, "tiny", CHEAP, elsewhere)
    export(monkeypatch, tiny_home, *options)
    assert exported(tiny_home) == NONE
    assert "was measured with device" in capsys.readouterr().err

    (tiny_home.profile("tiny") / "cost_model.json").write_text("{")
    export(monkeypatch, tiny_home, *options)
    assert exported(tiny_home) == NONE
    assert "not readable JSON" in capsys.readouterr().err


def test_of_several_roots_the_dearest_full_batch_decides(tiny_home: Home) -> None:
    told: list[str] = []
    for root in ("other", "third"):
        shutil.copytree(tiny_home.root("tiny"), tiny_home.root(root))
    profile(tiny_home, "tiny", CHEAP)
    profile(tiny_home, "other", DEAR)
    profile(tiny_home, "third", DEAR.scaled(10.0), measured_here(tiny_home, "third", "fp32"))
    settings = ExportSettings(mode="triton", upper_parameters={"dtype": "bf16", "max_rows": "16", "max_tokens": "512"})
    roots = ("tiny", "other", "third")
    assert dearest_cost_model(tiny_home, roots, settings, told.append) == DEAR
    assert len(told) == 1 and "root third is left out" in told[0]
    assert dearest_cost_model(tiny_home, ("tiny",), settings, told.append) == CHEAP
    assert dearest_cost_model(tiny_home, (), settings, told.append) is None
