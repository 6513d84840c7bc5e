"""Building the plugin, and which files are taken for one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import cli
from backends.deadline_batcher import FILE_NAME, PLAN_VERSION, call_plan_parameters, plugin_parameters, version_of
from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.scheduling.cost_model import CostModel
from backends.scheduling.settings import Capacity
from builder import plugin
from builder.export.config import from_text
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.plugin import PluginError, build_plugin, find_compiler, require_plugin


def export(monkeypatch: pytest.MonkeyPatch, home: Home, *options: str) -> object:
    monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(home.path), *options])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def test_a_plugin_says_what_it_was_built_for(built_plugin: Path) -> None:
    assert version_of(built_plugin) == PLAN_VERSION
    require_plugin(built_plugin)
    assert [path.name for path in built_plugin.parent.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no deadline batcher at"),
        (b"\x7fELF of somebody else", "is no deadline batcher of this project"),
        (b"hplm deadline batcher, plan 99, triton api 1.19;", "of another release (plan 99, here 11)"),
    ],
)
def test_other_files_are_refused_and_the_old_repository_stays(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    given, repository = tmp_path / "given.so", tmp_path / "repository"
    render_repository(repository, ExportSettings(max_batch_size=8))
    before = (repository / "hplm_upper" / "config.pbtxt").read_bytes()
    if content is not None:
        given.write_bytes(content)
    with pytest.raises((InvalidArgumentError, NotFoundError)) as caught:
        render_repository(repository, ExportSettings(mode="triton", plugin=given))
    assert message in str(caught.value)
    assert (repository / "hplm_upper" / "config.pbtxt").read_bytes() == before


def test_the_repository_carries_the_plugin_and_what_it_reads(built_plugin: Path, tmp_path: Path) -> None:
    cost = CostModel(1500.0, 2.5, 1e-05, 0.25, 12.0)
    settings = ExportSettings(
        mode="triton", plugin=built_plugin, cost_model=cost, queue_delay_us=700, upper_parameters={"slots": "9"}
    )
    render_repository(tmp_path / "repository", settings)
    folder = tmp_path / "repository" / "hplm_upper"
    model = from_text((folder / "config.pbtxt").read_text())
    for name in ("hplm_lower", "hplm_upper"):
        assert (tmp_path / "repository" / name / "1" / FILE_NAME).read_bytes() == built_plugin.read_bytes()
    lower = from_text((tmp_path / "repository" / "hplm_lower" / "config.pbtxt").read_text())
    assert call_plan_parameters().items() <= lower.parameters.items()
    assert model.batching is not None
    assert model.batching.max_queue_delay_us == 700
    assert model.parameters["mode"] == "triton"
    assert model.parameters["slots"] == "9"
    expected = plugin_parameters(Capacity(), cost) | {"slots": "9"}
    assert expected.items() <= model.parameters.items()
    assert float(model.parameters["cost_per_token_us"]) == 1e-05


@pytest.mark.parametrize(
    "wrong", [{"mode": "other"}, {"queue_delay_us": -1}, {"plugin": Path("a.so"), "takes_plugin": False}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        ExportSettings(**wrong)  # type: ignore[arg-type]


def test_the_command_builds_the_plugin_where_there_is_a_compiler(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for_texts, carried = (tiny_home.repository / name / "1" / FILE_NAME for name in ("hplm_lower", "hplm_upper"))
    assert export(monkeypatch, tiny_home, "--mode", "triton", "--max-tokens", "500", "--slots", "7") in (0, None)
    assert version_of(carried) == version_of(for_texts) == PLAN_VERSION
    parameters = from_text((tiny_home.repository / "hplm_upper" / "config.pbtxt").read_text()).parameters
    assert {"max_tokens": "500", "max_rows": "64", "slots": "8", "mode": "triton"}.items() <= parameters.items()
    assert export(monkeypatch, tiny_home, "--max-tokens", "0") not in (0, None)
    assert carried.exists()
    assert export(monkeypatch, tiny_home) in (0, None)
    assert version_of(carried) == version_of(for_texts) == PLAN_VERSION
    assert export(monkeypatch, tiny_home, "--no-plugin") in (0, None)
    assert not carried.exists()
    monkeypatch.setattr(plugin, "find_compiler", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiny_home.path / "empty"))
    capsys.readouterr()
    assert export(monkeypatch, tiny_home, "--mode", "triton") in (0, None)
    assert not carried.exists()
    said = capsys.readouterr().err
    assert "there is no C++ compiler to build the deadline batcher with" in said
    assert "a request that is damaged or large may fail those that share its batch" in said
    lower = tiny_home.repository / "hplm_lower" / "config.pbtxt"
    assert from_text(lower.read_text()).batching is not None
    assert export(monkeypatch, tiny_home) in (0, None)
    assert "Triton will hand over requests one by one" in capsys.readouterr().err
    assert not for_texts.exists()
    assert from_text(lower.read_text()).batching is None


def test_a_compiler_that_fails_is_one_line(built_plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / FILE_NAME
    target.write_bytes(b"the old one")
    with pytest.raises(PluginError) as caught:
        build_plugin(target, definitions=("-include", "no/such/header.h"))
    assert "no/such/header.h" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert target.read_bytes() == b"the old one"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("ld: final link failed: No space left on device", "collect2: error: ld returned 1 exit status"), "No space"),
        (("collect2: fatal error: cannot find 'ld'", "compilation terminated."), "cannot find 'ld'"),
        (("collect2: fatal error: ld terminated with signal 9 [Killed]",), "signal 9"),
        ((), "no reason given"),
    ],
)
def test_what_the_linker_lacks_is_told(
    lines: Sequence[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("\n".join(["#!/bin/sh", "cat >&2 <<'END'", *lines, "END", "exit 1"]) + "\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(PluginError, match=reason):
        build_plugin(tmp_path / FILE_NAME)


def test_the_compiler_is_the_own_choice_then_the_machines_then_zigs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "g++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "mine")
    assert find_compiler() == (str(tmp_path / "mine"),)
    monkeypatch.setenv("CXX", "mine g++ -O1")
    assert find_compiler() == (str(tmp_path / "mine"), "g++", "-O1")
    monkeypatch.setenv("CXX", " ")
    assert find_compiler() == (str(tmp_path / "g++"),)
    monkeypatch.delenv("CXX")
    assert find_compiler() == (str(tmp_path / "g++"),)
    (tmp_path / "g++").unlink()
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_compiler() == (sys.executable, "-m", "ziglang", "c++")
