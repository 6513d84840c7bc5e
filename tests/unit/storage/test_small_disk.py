"""A disk that is full when a server starts on it."""

from __future__ import annotations

from pathlib import Path

from small_disk import run_on_small_disk

FORECAST = """
import os
from pathlib import Path
disk = Path(sys.argv[1])
os.environ["HPLM_SIGNALS"] = str(disk)
(disk / "filler").write_bytes(bytes(15 << 10))
from backends.scheduling.wait_forecast import ForecastWriter
try:
    (disk / "more").write_bytes(bytes(8 << 10))
except OSError:
    pass
try:
    ForecastWriter("upper")
except OSError as error:
    print("no forecast:", error.strerror, file=sys.stderr)
"""


def test_an_engine_without_room_for_its_forecast_fails_with_a_line(tmp_path: Path) -> None:
    """Its pages are taken when it starts: later, writing to one would end the process."""
    assert run_on_small_disk(FORECAST, tmp_path / "disk", 16) == "no forecast: No space left on device\n"
