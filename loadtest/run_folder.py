"""A run on disk, with one line for each request; readable whenever and however the run ended.

    run.json       settings and state; replaced as a whole when the state changes
    schedule.npz   what was to be sent
    requests.csv   a line per request that ended, in the order of the ends
    summary.json, report.html   numbers and page
    generator.log  output of the load workers

Lines are written several times a second, so that a run that was killed has all but its last moment. A line that is cut
short is ignored.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from loadtest.errors import MissingError, OccupiedError, RunError
from loadtest.outcome import Kind, Outcome
from loadtest.requests import Requests
from loadtest.schedule import Schedule

FORMAT = 1
_COLUMNS = (
    "number",
    "scheduled_s",
    "sent_s",
    "done_s",
    "hplm",
    "tokens",
    "deadline_ms",
    "outcome",
    "reason",
    "version",
    "level",
    "doubtful",
    "right",
)
_FORMER_COLUMNS = _COLUMNS[:-3]
"""Of a run before answers said their level."""

_KINDS_BEFORE = {"refused": str(Kind.REJECTED)}
"""Outcomes as earlier versions wrote them."""


class State(StrEnum):
    """The state of a run; `RUNNING` in a folder that no process writes to means that the run was killed."""

    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make a new folder, or take an empty one; a folder with anything in it is rejected."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise OccupiedError(f"{path} exists already; name a new folder with --out")
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / "run.json").is_file():
            raise MissingError(f"{path} is no folder of a load test: it has no run.json")
        return cls(path)

    @property
    def log(self) -> Path:
        return self.path / "generator.log"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def write_schedule(self, schedule: Schedule) -> None:
        (self.path / "schedule.npz").write_bytes(schedule.to_bytes())

    def read_schedule(self) -> Schedule:
        path = self.path / "schedule.npz"
        try:
            return Schedule.from_bytes(path.read_bytes())
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise RunError(f"{path} cannot be read") from error

    def write_run(self, content: Mapping[str, Any]) -> None:
        self._replace("run.json", {"format": FORMAT, **content})

    def write_summary(self, content: Mapping[str, Any]) -> None:
        self._replace("summary.json", content)

    def write_report(self, html: str) -> None:
        self.report.write_text(html, encoding="utf-8")

    def read_run(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / 'run.json'} cannot be read") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunError(f"{self.path / 'run.json'} is in another format than this release's")
        return content

    @contextmanager
    def writing(self, schedule: Schedule) -> Iterator[RequestWriter]:
        with (self.path / "requests.csv").open("w", encoding="utf-8", newline="") as file:
            yield RequestWriter(file, schedule)
            file.flush()
            os.fsync(file.fileno())

    def read_requests(self) -> Requests:
        path = self.path / "requests.csv"
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content.rpartition(b"\n")[0].decode("utf-8")  # a run that was killed may have cut a letter
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path} cannot be read") from error
        head, *rows = list(csv.reader(whole.splitlines())) or [list(_COLUMNS)]
        names = _FORMER_COLUMNS if head == list(_FORMER_COLUMNS) else _COLUMNS
        for number, row in enumerate(rows, start=2):
            if len(row) != len(names):
                raise RunError(
                    f"{path} is damaged: line {number} has {len(row)} fields, not {len(names)}; without that line "
                    "the others can be reported"
                )
        columns: dict[str, Sequence[str]] = {name: [""] * len(rows) for name in _COLUMNS}
        columns |= zip(names, zip(*rows, strict=True), strict=True) if rows else {}
        try:
            return _requests(columns)
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}") from error

    def _replace(self, name: str, content: Mapping[str, Any]) -> None:
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(self.path / name)


class RequestWriter:
    """Appends outcomes, each joined with its row of the schedule."""

    def __init__(self, file: Any, schedule: Schedule) -> None:
        self._file = file
        self._schedule = schedule
        self._csv = csv.writer(file, lineterminator="\n")
        self._csv.writerow(_COLUMNS)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        self._csv.writerows(self._line(outcome) for outcome in outcomes)
        self._file.flush()

    def _line(self, outcome: Outcome) -> tuple[object, ...]:
        row, schedule = outcome.number, self._schedule
        return (
            row,
            f"{schedule.times_s[row]:.6f}",
            f"{outcome.sent_s:.6f}",
            f"{outcome.done_s:.6f}",
            schedule.hplms[int(schedule.hplm_of[row])],
            int(schedule.tokens[row]),
            schedule.deadline_ms(row),
            outcome.kind,
            outcome.reason,
            outcome.version,
            outcome.level,
            int(outcome.doubtful),
            None if outcome.right is None else int(outcome.right),
        )


def _requests(columns: Mapping[str, Sequence[str]]) -> Requests:
    deadlines = [value or "nan" for value in columns["deadline_ms"]]
    return Requests(
        numbers=np.array(columns["number"], np.int64),
        scheduled_s=np.array(columns["scheduled_s"], np.float64),
        sent_s=np.array(columns["sent_s"], np.float64),
        done_s=np.array(columns["done_s"], np.float64),
        tokens=np.array(columns["tokens"], np.int64),
        deadline_ms=np.array(deadlines, np.float64),
        hplms=np.array(columns["hplm"], np.str_),
        kinds=np.array([_KINDS_BEFORE.get(kind, kind) for kind in columns["outcome"]], np.str_),
        reasons=np.array(columns["reason"], np.str_),
        levels=np.array(columns["level"], np.str_),
        doubtful=np.array([value == "1" for value in columns["doubtful"]], np.bool_),
        right=np.array([value or "nan" for value in columns["right"]], np.float64),
    )
