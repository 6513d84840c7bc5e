"""How much memory a batch of cases takes at its highest."""

from __future__ import annotations

from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
MOST_MIB = 256.0


class PeakMemory:
    """The high-water mark of this process's resident memory since the object was made."""

    def __init__(self) -> None:
        _CLEAR.write_text(_RESET_PEAK)
        self._before_mib = _mib("VmRSS")

    @property
    def grown_mib(self) -> float:
        return _mib("VmHWM") - self._before_mib


def _mib(field: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024
