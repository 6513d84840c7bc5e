"""What the driver names of the GPUs, asked through its program; a script stands for it where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.engine.gpu_capability import Capability
from builder.gpus import best_capability, gpus_of_driver


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program, which is not there yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def install(driver: Path, script: str) -> None:
    driver.write_text(f"#!/bin/sh\n{script}\n")
    driver.chmod(0o755)


@pytest.mark.parametrize(
    ("printed", "code", "found"),
    [
        ("7.0\\n", 0, (7, 0)),
        ("8.0\\n8.9\\n7.5\\n", 0, (8, 9)),
        ("9.0\\n12.0\\n", 0, (12, 0)),
        ("7.0\\n[N/A]\\n", 0, None),
        ("", 0, None),
        ("\\377\\n", 0, None),
        ("8.9\\n", 9, None),
        ("Field compute_cap is not a valid field to query.\\n", 2, None),
    ],
)
def test_the_best_gpu_counts(driver: Path, printed: str, code: int, found: Capability | None) -> None:
    install(driver, f"printf '{printed}'; exit {code}")
    assert best_capability() == found


def test_without_a_driver_nothing_is_known(driver: Path) -> None:
    assert not driver.exists()
    assert best_capability() is None and gpus_of_driver() == []


def test_the_driver_is_asked_for_names_and_memory(driver: Path) -> None:
    install(driver, "echo $1; echo; echo $2")
    assert gpus_of_driver() == ["--query-gpu=name,memory.total", "--format=csv,noheader"]
