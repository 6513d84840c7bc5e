"""The traffic of a home: what all processes recorded, in one order."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from backends.errors import CorruptFileError, FileError, NotFoundError
from backends.storage import read_errors_are_clear
from backends.traffic.recording import SUFFIX, Recording, read_recording
from backends.traffic.records import RecordedHplm

Int64 = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
"""Whole numbers, as narrow as they are in files: there may be millions."""
Name = TypeVar("Name")
_TOGETHER_US = 2_000_000
"""Files with less between them recorded without a break: one followed the other."""


@dataclass(frozen=True, eq=False)
class Requests:
    """Columns of records in the order of arrival; see `RECORD`. `request` numbers the request that a record is of.

    Shape: [records] each.
    """

    arrived_us: Int64
    request: Column
    hplm: Column
    rows: Column
    tokens: Column
    deadline_us: Int64
    outcome: Column
    level: Column

    def __len__(self) -> int:
        return len(self.arrived_us)

    def where(self, kept: npt.NDArray[np.bool_] | Int64) -> Requests:
        """Return some of the records, by a mask or by their places."""
        return Requests(*(getattr(self, name)[kept] for name in _COLUMNS))


_COLUMNS = tuple(column.name for column in fields(Requests))


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests, and when they were recorded.

    Attributes:
        requests: Those of all files.
        hplms: By their numbers in `requests`.
        outcomes: Likewise.
        levels: Likewise.
        spans_us: When at least one process recorded, from and until, since 1970. Shape: [spans, 2].
        lost: Records that found no room.
        num_files: Files that were read.
        complaints: What is wrong with files, or parts of them, that were left out.
    """

    requests: Requests
    hplms: tuple[RecordedHplm, ...]
    outcomes: tuple[str, ...]
    levels: tuple[str, ...]
    spans_us: Int64
    lost: int
    num_files: int
    complaints: tuple[str, ...]

    @property
    def recorded_s(self) -> float:
        """Time in which traffic was recorded."""
        return float((self.spans_us[:, 1] - self.spans_us[:, 0]).sum() / 1e6)

    def between(self, since_us: int | None, until_us: int | None) -> Traffic:
        """Return what arrived in [since, until)."""
        if since_us is None and until_us is None:
            return self
        first = np.iinfo(np.int64).min if since_us is None else since_us
        end = np.iinfo(np.int64).max if until_us is None else until_us
        arrived_us, spans_us = self.requests.arrived_us, np.clip(self.spans_us, first, end)
        requests = self.requests.where((arrived_us >= first) & (arrived_us < end))
        return replace(self, requests=requests, spans_us=spans_us[spans_us[:, 1] > spans_us[:, 0]])


def read_traffic(folder: Path) -> Traffic:
    """Read all files of a folder; those that cannot be read are left out and complained of.

    Raises:
        NotFoundError: Nothing was recorded there.
        CorruptFileError: No file can be read.
    """
    with read_errors_are_clear(folder):
        paths = sorted(folder.glob(f"*{SUFFIX}"))
    recordings: list[Recording] = []
    complaints: list[str] = []
    for path in paths:
        try:
            recording = read_recording(path)
        except FileError as error:
            if path.exists():  # or its turn to make room has come
                complaints.append(str(error))
            continue
        recordings.append(recording)
        complaints += [] if recording.damage is None else [recording.damage]
    if complaints and not recordings:
        raise CorruptFileError(complaints[0])
    if not recordings:
        raise NotFoundError(f"no traffic was recorded in {folder}; `hplm serve --record-traffic` records it")
    return _merged(recordings, tuple(complaints))


def _merged(recordings: list[Recording], complaints: tuple[str, ...]) -> Traffic:
    hplms: dict[RecordedHplm, int] = {}
    outcomes: dict[str, int] = {}
    levels: dict[str, int] = {}
    parts = [
        Requests(
            one.records["arrived_us"],
            one.records["is_first"] != 0,
            _numbers(one.hplms, hplms)[one.records["hplm"]],
            one.records["rows"],
            one.records["tokens"],
            one.records["deadline_us"],
            _numbers(one.head.outcomes, outcomes)[one.records["outcome"]],
            _numbers(one.head.levels, levels)[one.records["level"]],
        )
        for one in recordings
    ]
    together = Requests(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))
    ordered = together.where(np.argsort(together.arrived_us, kind="stable"))
    requests = replace(ordered, request=np.cumsum(ordered.request))
    spans_us = _united([(one.head.began_us, one.until_us) for one in recordings])
    lost = sum(one.lost for one in recordings)
    return Traffic(requests, tuple(hplms), tuple(outcomes), tuple(levels), spans_us, lost, len(recordings), complaints)


def _numbers(names: tuple[Name, ...], known: dict[Name, int]) -> npt.NDArray[np.int32]:
    """Number names over all files, and return the numbers of these."""
    return np.array([known.setdefault(name, len(known)) for name in names], np.int32)


def _united(spans_us: list[tuple[int, int]]) -> Int64:
    united: list[list[int]] = []
    for begin, end in sorted(spans_us):
        if united and begin - united[-1][1] <= _TOGETHER_US:
            united[-1][1] = max(united[-1][1], end)
        else:
            united.append([begin, end])
    return np.array(united, np.int64).reshape(-1, 2)
