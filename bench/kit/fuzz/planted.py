"""The part of planted bugs: each in a copy of the code, where the project's own tests must find it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kit.fuzz.bugs import BUGS, QUICK, Bug
from bench.kit.fuzz.options import Options
from builder.progress import Step, progress_bars
from loadtest.errors import RunError

PROJECT = Path(__file__).parents[3]
_COPIED = (
    "backends",
    "bench",
    "builder",
    "cli",
    "clients",
    "demo",
    "loadtest",
    "model_repository",
    "tests",
    "workload",
)
_FILES = ("pyproject.toml",)
_AT_ONCE = 2
_TIMEOUT_S = 240.0
_PASSED, _FAILED = 0, 1
"""pytest's exit codes; the others tell of tests that could not be run."""
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class TestRun:
    """What tests said; `failed` names the first that failed."""

    __test__ = False

    failed: str | None
    took_s: float


def find_planted(options: Options) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Plant bugs one by one, and run their tests; before that all these tests without any bug, which must pass."""
    wanted = [bug for bug in BUGS if options.only in (None, bug.name) and (not options.is_quick or bug.name in QUICK)]
    with progress_bars("bench.fuzz") as report:
        control = run_tests(sorted({test for bug in wanted for test in bug.tests}))
        if control.failed is not None:
            raise RunError(f"{control.failed} fails without a planted bug")
        runs: list[TestRun] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for run in pool.map(lambda bug: run_tests(bug.tests, bug), wanted):
                runs.append(run)
                report(Step("bugs", len(runs), len(wanted), f"{sum(one.failed is not None for one in runs)} found"))
    rows = [
        {"target": bug.name, "breaks": bug.breaks, "found by": run.failed or "", "seconds": round(run.took_s, 1)}
        for bug, run in zip(wanted, runs, strict=True)
    ]
    figures = {"planted": float(len(wanted)), "planted_found": float(sum(run.failed is not None for run in runs))}
    return figures, [*rows, {"target": "none", "breaks": "nothing", "seconds": round(control.took_s, 1)}]


def run_tests(tests: Sequence[str], bug: Bug | None = None) -> TestRun:
    """Run tests in a copy of the code, with a bug in it.

    Raises:
        RunError: The bug does not fit the code any more, or the tests could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="hplm-planted-") as folder:
        copy = Path(folder)
        copy_project(copy)
        if bug is not None:
            plant(copy, bug)
        started_s = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'clients'}"}
        try:
            ended = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RunError(f"{' '.join(tests)} took more than {_TIMEOUT_S:.0f} s {_with(bug)}") from error
        return TestRun(_first_failed(ended, tests, bug), time.monotonic() - started_s)


def copy_project(to: Path) -> None:
    """Copy the code and its tests, with what was compiled of them."""
    for name in _COPIED:
        shutil.copytree(PROJECT / name, to / name, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in _FILES:
        shutil.copy2(PROJECT / name, to / name)


def plant(copy: Path, bug: Bug) -> None:
    path = copy / bug.path
    text = path.read_text(encoding="utf-8")
    if text.count(bug.right) != 1:
        raise RunError(f"bug {bug.name}: {bug.path} has its text {text.count(bug.right)} times; change bugs.py with it")
    path.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")


def _first_failed(ended: subprocess.CompletedProcess[str], tests: Sequence[str], bug: Bug | None) -> str | None:
    if ended.returncode == _PASSED:
        return None
    failed = _FAILED_TEST.search(ended.stdout)
    if ended.returncode != _FAILED or failed is None:
        lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
        raise RunError(f"{' '.join(tests)} could not be run {_with(bug)}: {lines[-1] if lines else 'no output'}")
    return failed[1]


def _with(bug: Bug | None) -> str:
    return "without a bug" if bug is None else f"with bug {bug.name}"
