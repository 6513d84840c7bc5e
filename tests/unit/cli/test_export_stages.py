"""`hplm export --stages` and `--device-memory`: what is rendered, and what is rejected before it is."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import cli
from backends.engine.settings import EngineSettings
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.registry.entries import HplmEntry, OfferedStudents
from builder.export.in_force import effective_settings, in_one_line, settings_of
from builder.export.models import upper
from builder.export.rendered import upper_settings
from builder.export.settings import ExportSettings

Export = Callable[..., tuple[bool, str]]


@pytest.fixture
def export(tiny_home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Export:
    """Run the command in this process; returns whether it went well, and what it said."""

    def run(*options: str) -> tuple[bool, str]:
        monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(tiny_home.path), *options])
        try:
            cli.main()
            code: str | int | None = 0
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr()
        return code in (0, None), said.out + said.err

    return run


def test_stages_and_memory_reach_the_engine(tiny_home: Home, export: Export) -> None:
    assert export("--stages", "2", "--device-memory", "500MB", "--dtype", "fp32")[0]
    settings, _ = upper_settings(tiny_home)
    stack = EngineSettings.from_model(settings, "cpu").stack
    assert (stack.stages, stack.device_memory) == (2, 500_000_000)
    assert "slots 128, stages 2, device_memory 500000000," in in_one_line(effective_settings(tiny_home.repository))
    well, said = export()
    assert well and "upper stages: 2 → not set" in said
    assert not {"upper stages", "upper device_memory"} & settings_of(tiny_home.repository).keys()
    defaults = EngineSettings.from_model(ModelSettings(tiny_home, {}), "cpu").stack
    assert (defaults.stages, defaults.device_memory) == (1, None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--stages", "0"), "--stages must be 1 to 64, not 0"),
        (("--stages", "-1"), "--stages must be 1 to 64, not -1"),
        (("--stages", "65"), "--stages must be 1 to 64, not 65"),
        (("--stages", "3"), "root 'tiny' cannot be cut into 3 stages: it has 2 upper layers"),
        (("--stages", "2", "--mode", "triton"), "in mode 'triton' one batch runs at a time"),
        (("--device-memory", "0"), "--device-memory must be above 0"),
        (("--device-memory", "much"), "--device-memory: 'much' is no amount of memory"),
        (("--device-memory", "0.0001MB", "--stages", "2"), "of the 0.0 MB of --device-memory of each stage"),
    ],
    ids=" ".join,
)
def test_what_is_impossible_is_one_line_and_renders_nothing(
    tiny_home: Home, export: Export, options: tuple[str, ...], complaint: str
) -> None:
    well, said = export(*options)
    assert not well
    assert complaint in said and "Traceback" not in said
    assert not (tiny_home.repository / "hplm_upper").exists()


def test_it_is_said_that_students_are_not_served(
    tiny_home: Home, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HplmEntry, "students", OfferedStudents("some", 2, 0.5))
    well, said = export("--stages", "2")
    assert well and "students are not served with --stages: requests for those of tiny are rejected" in said


def test_stages_on_gpus_are_one_process() -> None:
    stages = upper(ExportSettings(device="gpu", upper_parameters={"stages": "2"}))
    assert stages.instances is not None and (stages.instances.count, stages.instances.gpus) == (1, (0,))
    whole = upper(ExportSettings(device="gpu"))
    assert whole.instances is not None and whole.instances.gpus == ()
