"""What the processes of a server leave for each other: the wait forecast, the key of the seal, heartbeats."""

from __future__ import annotations

import os
from pathlib import Path

from backends.clock import now_us
from backends.home import Home
from backends.scheduling.wait_forecast import LENGTHS, ForecastReader, ForecastWriter, WaitForecast
from backends.seal import Seal
from backends.server_folder import FOLDER_VARIABLE
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.target import Target

_SERVER = 7


class Signals(Target):
    """Files with damage, cut or of other kinds."""

    name = "signals"
    cases = 30_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._before = os.environ.get(FOLDER_VARIABLE)
        os.environ[FOLDER_VARIABLE] = str(scratch)
        writer = ForecastWriter("upper")
        writer.tell(WaitForecast([1.0, 2.0, 3.0, 5.0, 8.0], [[1000.0 * length] * 5 for length in LENGTHS]), now_us())
        (self._forecast,) = scratch.iterdir()
        self._told = self._forecast.read_bytes()
        Seal.of_watched(_SERVER, scratch)
        (self._key,) = (path for path in scratch.iterdir() if path != self._forecast)
        self._content = self._key.read_bytes()

    def attempt(self, draw: Draw) -> None:
        if draw.happens(0.5):
            self._key.unlink(missing_ok=True)
            self._key.write_bytes(draw.damaged(self._content))
            self._key.chmod(draw.choice((0o600, 0o600, 0o644)))
            Seal.of_watched(_SERVER, self.scratch).of(b"")
            return
        self._forecast.unlink(missing_ok=True)
        self._forecast.write_bytes(draw.damaged(self._told))
        reader = ForecastReader()
        try:
            reader.finish_us(now_us(), draw.randint(0, 600), ("acme",), draw.choice((None, draw.randint(0, 2**60))))
        finally:
            reader.close()

    def close(self) -> None:
        if self._before is None:
            del os.environ[FOLDER_VARIABLE]
        else:
            os.environ[FOLDER_VARIABLE] = self._before
