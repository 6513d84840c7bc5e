"""The bench of recorded traffic: each figure is of what it says."""

from __future__ import annotations

from pathlib import Path

from backends.home import Home
from backends.registry.snapshot import RegistrySnapshot
from backends.traffic.recorder import MOST_NOTES
from backends.traffic.recording import read_recording
from bench.recording import Settings, _turns, buffer_mb, noting


def test_what_is_measured_is_recorded(tiny_home: Home, tmp_path: Path) -> None:
    snapshot = RegistrySnapshot.open(tiny_home)
    turns, request_bytes = _turns(tiny_home, snapshot, Settings(turns=2, requests=40, notes=0, batch=8), seed=1)
    (path,) = tiny_home.traffic.iterdir()
    assert len(read_recording(path).records) == 3 * 40
    assert request_bytes == path.stat().st_size / 120
    assert len(turns) == 2 and all(turn.without_us > 0 for turn in turns)
    entry = snapshot.live()[0]
    taken = noting(tmp_path / "noted", entry, notes=1)
    assert 0 < taken.note_us < taken.recording_us < 1000
    assert 1 < buffer_mb(tmp_path / "kept", entry) < 50
    (path,) = (tmp_path / "kept").iterdir()
    read = read_recording(path)
    assert (len(read.records), read.lost) == (MOST_NOTES, 1000)
    snapshot.close()
