"""Tells the processes in front of the engine how long rows wait, now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from backends.scheduling.admission import Admission
from backends.scheduling.wait_forecast import WaitForecast

LOGGER = logging.getLogger(__name__)
_TELL_EVERY_US = 100_000
OnForecast = Callable[[WaitForecast, int], None]


class ForecastTeller:
    """Tells the wait forecast every 100 ms while there is work; nothing where nobody listens. Under the loop's lock."""

    def __init__(self, admission: Admission[Any], on_forecast: OnForecast | None) -> None:
        self._admission = admission
        self._on_forecast = on_forecast
        self._told_us = 0

    def tell(self, now: int, is_idle: bool = False) -> None:
        """Tell if it is time, or if the engine is idle. Others only reject earlier by it: a defect costs no answer."""
        if self._on_forecast is None or not (is_idle or now - self._told_us >= _TELL_EVERY_US):
            return
        self._told_us = now
        try:
            self._on_forecast(WaitForecast.of(self._admission, now), now)
        except Exception:
            LOGGER.exception("the wait forecast could not be told")
