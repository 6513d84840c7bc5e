"""How old a server's view of the registry is, and for how long it is good enough to answer from."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from backends.errors import InvalidArgumentError, UnavailableError
from backends.model_settings import ModelSettings

LOGGER = logging.getLogger(__name__)
_TOLD_EVERY_S = 60.0
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class StalenessSettings:
    """`limit_s`: how long a server answers from what it has read, while the registry is away."""

    limit_s: int = 24 * _SECONDS_PER_HOUR

    def __post_init__(self) -> None:
        if self.limit_s < 1:
            raise InvalidArgumentError(
                f"a server answers for at least 1 s while the registry is away, not {self.limit_s}"
            )

    @property
    def parameters(self) -> dict[str, str]:
        return {"stale_limit_s": str(self.limit_s)}

    @classmethod
    def from_model(cls, settings: ModelSettings) -> StalenessSettings:
        return cls(settings.number("stale_limit_s", cls.limit_s))


class Staleness:
    """Notes when the registry was read. Of a registry that is away the log tells at once, then each minute."""

    def __init__(self, settings: StalenessSettings) -> None:
        self._limit_s = settings.limit_s
        self._read_s = time.monotonic()
        self._next_told_s = -math.inf
        self._is_away = self._was_over = False

    @property
    def age_s(self) -> float:
        """Seconds since the registry was read; a fraction of one unless it is away."""
        return time.monotonic() - self._read_s

    def require_fresh(self) -> None:
        """Check that what was read is good enough to answer from; raises UnavailableError."""
        if self.age_s > self._limit_s:
            raise UnavailableError("the registry has been away for longer than this server answers without it")

    def note_read(self, at_s: float) -> None:
        """Note that the registry was asked at a monotonic time, and has answered."""
        if self._is_away:
            LOGGER.warning("the registry is back after %.1f s", self.age_s)
        self._read_s, self._next_told_s = at_s, -math.inf
        self._is_away = self._was_over = False

    def note_failure(self, error: Exception) -> None:
        """Note that the registry could not be read."""
        self._is_away = True
        age_s, now_s = self.age_s, time.monotonic()
        if age_s > self._limit_s and not self._was_over:
            self._was_over = True
            LOGGER.error("the registry was not read for %.0f s: all requests are rejected until it is", age_s)
        elif now_s >= self._next_told_s:
            self._next_told_s = now_s + _TOLD_EVERY_S
            left_s = max(0.0, self._limit_s - age_s)
            LOGGER.warning(
                "the registry was not read for %.1f s; what was live then is served for %.0f s more: %s",
                age_s,
                left_s,
                error,
            )
