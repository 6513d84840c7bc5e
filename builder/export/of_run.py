"""Settings that one run of a server may have otherwise than its export."""

from __future__ import annotations

from dataclasses import dataclass

from backends.lower.caller_check import AUTH_VARIABLE
from backends.scheduling.settings import POLICY_VARIABLE
from backends.traffic.settings import RECORD_VARIABLE


@dataclass(frozen=True, slots=True)
class SettingsOfRun:
    """None leaves a setting as it was exported."""

    policy: str | None = None
    auth: str | None = None
    record_traffic: bool | None = None

    @property
    def parameters(self) -> dict[str, str]:
        """Settings that are given, as `upper policy`."""
        return _given({"upper policy": self.policy, "lower auth": self.auth, "lower record_traffic": self._record})

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell the models."""
        return _given({POLICY_VARIABLE: self.policy, AUTH_VARIABLE: self.auth, RECORD_VARIABLE: self._record})

    @property
    def _record(self) -> str | None:
        return None if self.record_traffic is None else str(self.record_traffic).lower()


def _given(settings: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value is not None}
