"""What recorded requests are grouped by."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.traffic.records import RecordedHplm


class By(StrEnum):
    """A family is a root and a domain of it."""

    TENANT = "tenant"
    FAMILY = "family"
    HPLM = "hplm"

    def of(self, hplm: RecordedHplm) -> str:
        return {By.TENANT: hplm.tenant, By.FAMILY: hplm.family, By.HPLM: hplm.id}[self]
