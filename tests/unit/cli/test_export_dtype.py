"""`hplm export --dtype`: what each model computes in, and what `auto` takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cli
from backends.engine import precision
from backends.home import Home
from backends.registry.registry import Registry
from builder.export import chosen_dtype
from builder.export.in_force import settings_of


def export(monkeypatch: pytest.MonkeyPatch, home: Home, *options: str) -> str | int | None:
    """Run the command in this process; its exit code, or the line that it ends with."""
    monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(home.path), *options])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize(("dtype", "lower"), [("int8", "int8"), ("bf16", "bf16"), ("fp32", "fp32")])
def test_lower_layers_compute_in_the_same(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, dtype: str, lower: str
) -> None:
    assert export(monkeypatch, tiny_home, "--dtype", dtype) in (0, None)
    assert settings_of(tiny_home.repository)["lower dtype"] == lower
    assert settings_of(tiny_home.repository)["upper dtype"] == dtype


UNREAD = "; --int8-corpus is not read"


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        (("--dtype", "auto"), "what is faster than bf16"),
        (("--dtype", "auto", "--device", "gpu"), "what is faster than bf16"),
        (("--dtype", "auto"), "roots"),
        (("--dtype", "int8"), "instructions"),
        (("--dtype", "int8"), "roots"),
    ],
)
def test_a_corpus_that_is_not_read_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    lacks: str,
) -> None:
    monkeypatch.setattr(precision, "has_amx", lambda: lacks == "what is faster than bf16")
    monkeypatch.setattr(precision, "int8_instructions", lambda: None if lacks == "instructions" else "AVX2")
    home, corpus = Home(tmp_path / "home"), tmp_path / "corpus.txt"
    Registry.open(home, create=True).close()
    corpus.touch()
    assert export(monkeypatch, home, *options, "--int8-corpus", str(corpus)) in (0, None)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "--int8-corpus" in line)
    assert line.endswith(UNREAD)
    assert export(monkeypatch, home, *options) in (0, None)
    assert UNREAD not in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["auto", "int8"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_corpus_that_does_not_exist_is_an_error_although_it_would_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dtype: str, device: str
) -> None:
    monkeypatch.setattr(precision, "has_amx", lambda: True)
    home = Home(tmp_path / "home")
    Registry.open(home, create=True).close()
    for path, reason in ((tmp_path / "gone.txt", "corpus {} does not exist"), (tmp_path, "{} is no file")):
        options = "--dtype", dtype, "--device", device, "--int8-corpus", str(path)
        assert export(monkeypatch, home, *options) not in (0, None)
        assert capsys.readouterr().err.strip().endswith(reason.format(path))
        assert not home.repository.exists()


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
    monkeypatch.setattr(chosen_dtype, "LEAST_EQUAL_LABELS", 0.95)  # of the tiny models' labels some hang by a hair
    monkeypatch.setattr(precision, "int8_instructions", lambda: int8)
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: bf16)
    monkeypatch.setattr(precision, "has_amx", lambda: amx)
    assert export(monkeypatch, tiny_home, "--dtype", "auto") in (0, None)
    assert taken in capsys.readouterr().out
    assert settings_of(tiny_home.repository)["upper dtype"] == taken.split()[1].rstrip(":")
