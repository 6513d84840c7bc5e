"""`hplm export --stages` and `--device-memory`: what is rendered, and what is rejected before it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cli
from backends.engine.settings import EngineSettings
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.registry.entries import HplmEntry, OfferedStudents
from builder.export.config import ModelDescription, from_text
from builder.export.in_force import configurations_of_run, effective_settings, in_one_line, settings_of
from builder.export.models import all_models, upper
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
        (("--stage-models",), "one stage is one model; stages that are models are two or more: add --stages 2"),
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


def test_stages_that_are_models_are_chained(tiny_home: Home, export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HplmEntry, "levels", ("full", "early"))
    well, said = export("--stages", "2", "--stage-models", "--dtype", "fp32", "--no-plugin")
    assert well and re.search(r"all layers answer with --stage-models: \d+ hPLMs have levels that are not served", said)
    repository, code = tiny_home.repository, Path("1", "model.py")
    models = {path.name for path in repository.iterdir()}
    assert models == {"hplm", "hplm_lower", "hplm_upper", "hplm_stage_1"}
    assert (repository / "hplm_stage_1" / code).read_bytes() == (repository / "hplm_upper" / code).read_bytes()
    for stage, model in enumerate(("hplm_upper", "hplm_stage_1")):
        parameters = description_of(tiny_home, model).parameters
        engine = EngineSettings.from_model(ModelSettings(tiny_home, parameters), "cpu")
        assert (engine.stack.stages, engine.stack.stage, engine.stack.dtype) == (2, stage, "fp32")
    steps = description_of(tiny_home, "hplm").steps
    made = {name for step in steps for name in step.outputs.values()}
    assert [step.model for step in steps] == ["hplm_lower", "hplm_upper", "hplm_stage_1"]
    assert {name for step in steps for name in step.inputs.values()} <= made | {"MODEL", "TEXT"}
    assert sum(len(step.outputs) for step in steps) == len(made)
    assert "stages 2, stage_models true," in in_one_line(effective_settings(repository))
    well, said = export("--stages", "2", "--no-plugin")
    assert well and "upper stage_models: true → not set" in said
    assert not (repository / "hplm_stage_1").exists()


def description_of(home: Home, model: str) -> ModelDescription:
    return from_text((home.repository / model / "config.pbtxt").read_text())


def test_what_a_run_changes_it_changes_in_all_stages(tiny_home: Home, export: Export) -> None:
    """A processor without bf16, say."""
    assert export("--stages", "2", "--stage-models", "--no-plugin")[0]
    changed = configurations_of_run(tiny_home.repository, {"upper dtype": "fp32"})
    assert changed.keys() == {"hplm_upper", "hplm_stage_1"}
    assert {from_text(text).parameters["dtype"] for text in changed.values()} == {"fp32"}


def test_stages_that_are_models_have_a_gpu_each() -> None:
    settings = ExportSettings(device="gpu", upper_parameters={"stages": "3"}, stage_models=True)
    stages = [model for model in all_models(settings) if model.name not in ("hplm", "hplm_lower")]
    assert [model.name for model in stages] == ["hplm_upper", "hplm_stage_1", "hplm_stage_2"]
    assert [model.instances and (model.instances.count, model.instances.gpus) for model in stages] == [
        (1, (0,)),
        (1, (1,)),
        (1, (2,)),
    ]
    names = [([tensor.name for tensor in model.inputs], [tensor.name for tensor in model.outputs]) for model in stages]
    states, others = ["STATES", "MATES"], ["TICKET", "WORDS"]
    assert names == [(["HIDDEN", *others], states), ([*states, *others], states), ([*states, *others], ["RESULT"])]


def test_stages_on_gpus_are_one_process() -> None:
    stages = upper(ExportSettings(device="gpu", upper_parameters={"stages": "2"}))
    assert stages.instances is not None and (stages.instances.count, stages.instances.gpus) == (1, (0,))
    whole = upper(ExportSettings(device="gpu"))
    assert whole.instances is not None and whole.instances.gpus == ()
