"""All benches one after the other, each in a process of its own, and one table of their figures.

What a bench has measured stays in a folder, so that an interrupted suite can go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.kit.catalogue import bench_named

COMMITTED = Path(__file__).parents[2] / "docs" / "results"
_TIMES_THE_LIMIT = 5


@dataclass(frozen=True)
class Measured:
    """One bench of the suite; `error` is its last line if it failed."""

    bench: str
    took_s: float
    figures: dict[str, float] = field(default_factory=dict)
    error: str | None = None


class Suite:
    """Benches in their quick sizes, or in full ones."""

    def __init__(self, folder: Path, is_quick: bool) -> None:
        self._folder, self._is_quick = folder, is_quick

    def run(self, names: Sequence[str], resumes: bool) -> Iterator[Measured]:
        """Measure each; with `resumes` only those that have not succeeded in this folder yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names, start=1):
            earlier = self._read(name) if resumes else None
            measured = earlier if earlier is not None and earlier.error is None else self._measure(name)
            said = "failed: " + measured.error if measured.error else f"{measured.took_s:.0f} s"
            print(f"{number}/{len(names)}  {name}  {said}", file=sys.stderr, flush=True)
            yield measured

    def _measure(self, name: str) -> Measured:
        report, log = self._folder / f"{name}.json", self._folder / f"{name}.log"
        report.unlink(missing_ok=True)
        size = ["--quick"] if self._is_quick else []
        command = [sys.executable, "-m", f"bench.{name}", *size, "--json", str(report)]
        limit_s = _TIMES_THE_LIMIT * bench_named(name).quick_s if self._is_quick else None
        started_s = time.monotonic()
        with log.open("w") as output:
            status = _status(command, output, limit_s)
        took_s = time.monotonic() - started_s
        if status == 0 and report.exists():
            measured = Measured(name, took_s, json.loads(report.read_text(encoding="utf-8"))["figures"])
        else:
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            why = "took too long" if status is None else lines[-1] if lines else f"exit status {status}"
            measured = Measured(name, took_s, error=why)
        (self._folder / f"{name}.run.json").write_text(json.dumps(asdict(measured)), encoding="utf-8")
        return measured

    def _read(self, name: str) -> Measured | None:
        path = self._folder / f"{name}.run.json"
        return Measured(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _status(command: Sequence[str], output: Any, limit_s: float | None) -> int | None:
    """Exit status, or None after the limit; what the command has started ends with it."""
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def table(measured: Iterable[Measured], committed: Path = COMMITTED) -> list[dict[str, Any]]:
    """A row for each figure; a bench that failed is a row too."""
    return [row for one in measured for row in _rows(one, committed)]


def _rows(measured: Measured, committed: Path) -> list[dict[str, Any]]:
    if measured.error is not None:
        return [{"bench": measured.bench, "figure": "", "verdict": f"FAILED: {measured.error}"}]
    path = committed / f"{measured.bench}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
    bars = bench_named(measured.bench).bars
    rows = [
        {
            "bench": measured.bench,
            "figure": figure,
            "now": value,
            "committed": before.get(figure),
            "bar": str(bars[figure]) if figure in bars else None,
            "verdict": ("holds" if bars[figure].holds(value) else "MISSED") if figure in bars else None,
        }
        for figure, value in measured.figures.items()
    ]
    missing = [
        {"bench": measured.bench, "figure": figure, "bar": str(bar), "verdict": "not measured"}
        for figure, bar in bars.items()
        if figure not in measured.figures
    ]
    return rows + missing
