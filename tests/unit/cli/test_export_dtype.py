"""`hplm export --dtype`: what each model computes in, and what `auto` takes."""

from __future__ import annotations

import sys

import pytest

import cli
from backends.engine import precision
from backends.home import Home
from builder.export.in_force import settings_of


def export(monkeypatch: pytest.MonkeyPatch, home: Home, *options: str) -> str | int | None:
    """Run the command in this process; its exit code, or the line that it ends with."""
    monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(home.path), *options])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize(("dtype", "lower"), [("int8", "bf16"), ("bf16", "bf16"), ("fp32", "fp32")])
def test_lower_layers_are_not_quantised(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, dtype: str, lower: str
) -> None:
    assert export(monkeypatch, tiny_home, "--dtype", dtype) in (0, None)
    assert settings_of(tiny_home.repository)["lower dtype"] == lower
    assert settings_of(tiny_home.repository)["upper dtype"] == dtype


def test_a_corpus_that_is_not_read_is_named(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision, "has_amx", lambda: True)
    assert export(monkeypatch, tiny_home, "--dtype", "auto", "--int8-corpus", "gone.txt") in (0, None)
    assert "; --int8-corpus is not read" in capsys.readouterr().out


def test_fp8_is_for_gpus(tiny_home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(monkeypatch, tiny_home, "--dtype", "fp8") not in (0, None)
    assert "--dtype fp8 is for GPUs: add --device gpu, or take int8" in capsys.readouterr().err
    assert export(monkeypatch, tiny_home, "--dtype", "fp8", "--device", "gpu") in (0, None)
    assert settings_of(tiny_home.repository)["upper dtype"] == "fp8"


@pytest.mark.parametrize(
    ("int8", "bf16", "amx", "taken"),
    [
        ("VNNI", True, True, "dtype bf16: AMX multiplies bf16 so fast that int8, which has to quantise, is no faster"),
        ("VNNI", True, False, "dtype int8: this processor has VNNI instructions"),
        ("AVX2", False, False, "dtype int8: this processor has AVX2 instructions"),
        (None, True, False, "dtype bf16: the processor has neither VNNI nor AVX2 instructions"),
        (None, False, False, "dtype fp32: the processor has neither VNNI nor AVX2 instructions"),
    ],
)
def test_auto_says_which_dtype_it_took(
    tiny_home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    int8: str | None,
    bf16: bool,
    amx: bool,
    taken: str,
) -> None:
    monkeypatch.setattr(precision, "int8_instructions", lambda: int8)
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: bf16)
    monkeypatch.setattr(precision, "has_amx", lambda: amx)
    assert export(monkeypatch, tiny_home, "--dtype", "auto") in (0, None)
    assert taken in capsys.readouterr().out
    assert settings_of(tiny_home.repository)["upper dtype"] == taken.split()[1].rstrip(":")
