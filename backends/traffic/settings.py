"""Settings of an export for what servers record of their traffic."""

from __future__ import annotations

import os
from dataclasses import dataclass

from backends.errors import InvalidArgumentError, shown
from backends.model_settings import ModelSettings

RECORD_VARIABLE = "HPLM_RECORD_TRAFFIC"
"""Goes before what an export says, for one run of the server."""
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_LEAST_MB, _MOST_MB = 16, 1 << 20
_MOST_DAYS = 3650
_MB = 1 << 20
_FILES = 16
_DAY_S = 86_400.0


@dataclass(frozen=True)
class TrafficSettings:
    """What is recorded, and how much of it a home keeps.

    Attributes:
        record: Whether traffic is recorded.
        max_mb: Disk space of all files of a home; the oldest make room.
        max_days: Files that were last written so long ago are removed.
    """

    record: bool = False
    max_mb: int = 256
    max_days: int = 30

    def __post_init__(self) -> None:
        if not _LEAST_MB <= self.max_mb <= _MOST_MB:
            raise InvalidArgumentError(f"recorded traffic may take {_LEAST_MB} to {_MOST_MB} MB, not {self.max_mb}")
        if not 1 <= self.max_days <= _MOST_DAYS:
            raise InvalidArgumentError(f"recorded traffic is kept 1 to {_MOST_DAYS} days, not {self.max_days}")

    @property
    def max_bytes(self) -> int:
        return self.max_mb * _MB

    @property
    def file_bytes(self) -> int:
        """Size of one file, at most; then the next one begins."""
        return self.max_bytes // _FILES

    @property
    def max_age_s(self) -> float:
        return self.max_days * _DAY_S

    @property
    def parameters(self) -> dict[str, str]:
        """The settings as parameters of a model's configuration."""
        return {
            "record_traffic": str(self.record).lower(),
            "traffic_mb": str(self.max_mb),
            "traffic_days": str(self.max_days),
        }

    @classmethod
    def from_model(cls, settings: ModelSettings) -> TrafficSettings:
        exported = settings.flag("record_traffic", cls.record)
        of_run = os.environ.get(RECORD_VARIABLE)
        return cls(
            _flag_of(of_run) if of_run else exported,
            settings.number("traffic_mb", cls.max_mb),
            settings.number("traffic_days", cls.max_days),
        )


def _flag_of(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise InvalidArgumentError(f"{RECORD_VARIABLE} is {shown(text)}, not one of {', '.join(_WORDS)}")
    return _WORDS[text.lower()]
