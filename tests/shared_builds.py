"""What is built once for all parallel workers of a test run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Return the folder of this name that the run shares; the first worker that asks for it builds it."""
    worker_folder = factory.getbasetemp()
    run_folder = worker_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else worker_folder
    folder, done = run_folder / name, run_folder / f"{name}.built"
    with FileLock(run_folder / f"{name}.lock"):
        if not done.exists():
            folder.mkdir()
            build(folder)
            done.touch()
    return folder
