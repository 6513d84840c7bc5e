"""What an export decides about who may wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.errors import InvalidArgumentError, shown
from backends.model_settings import ModelSettings
from backends.scheduling.fair_share import ShareSettings

_US_PER_MS = 1000


@dataclass(frozen=True)
class AdmissionSettings:
    """Of one engine.

    `max_waiting` rows may wait, `tenant_quota` of one tenant (None: half of all). With `predicts`, what cannot be
    answered before its deadline is refused at once; predictions count `margin_percent` longer than they are.
    """

    max_waiting: int = 10_000
    tenant_quota: int | None = None
    predicts: bool = True
    margin_percent: int = 25
    shares: ShareSettings = field(default_factory=ShareSettings)

    def __post_init__(self) -> None:
        if self.max_waiting < 1:
            raise InvalidArgumentError(f"at least 1 row may wait, not {self.max_waiting}")
        if self.tenant_quota is not None and self.tenant_quota < 1:
            raise InvalidArgumentError(f"at least 1 row of a tenant may wait, not {self.tenant_quota}")
        if not 0 <= self.margin_percent <= 400:
            raise InvalidArgumentError(f"a margin of {self.margin_percent} percent is not between 0 and 400")

    @property
    def quota(self) -> int:
        return max(1, self.max_waiting // 2) if self.tenant_quota is None else self.tenant_quota

    @property
    def parameters(self) -> dict[str, str]:
        """As a model's configuration carries them."""
        quota = {} if self.tenant_quota is None else {"tenant_quota": str(self.tenant_quota)}
        weights = ",".join(f"{tenant}={weight:g}" for tenant, weight in self.shares.weights.items())
        return {
            "max_waiting": str(self.max_waiting),
            **quota,
            "admission": str(self.predicts).lower(),
            "margin_percent": str(self.margin_percent),
            "burst_ms": str(round(self.shares.burst_us / _US_PER_MS)),
            **({"tenant_weights": weights} if weights else {}),
        }

    @classmethod
    def from_model(cls, settings: ModelSettings) -> AdmissionSettings:
        quota = settings.number("tenant_quota", 0)
        burst_ms = settings.number("burst_ms", round(ShareSettings.burst_us / _US_PER_MS))
        return cls(
            max_waiting=settings.number("max_waiting", cls.max_waiting),
            tenant_quota=quota if "tenant_quota" in settings.parameters else None,
            predicts=settings.flag("admission", cls.predicts),
            margin_percent=settings.number("margin_percent", cls.margin_percent),
            shares=ShareSettings(parse_weights(settings.text("tenant_weights", "")), float(_US_PER_MS * burst_ms)),
        )


def parse_weights(text: str) -> Mapping[str, float]:
    """`acme=3,globex=0.5` as numbers by tenant."""
    weights: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        tenant, equals, weight = part.partition("=")
        if not (tenant and equals and "/" not in tenant):
            raise InvalidArgumentError(f"{shown(part)} is not of the form tenant=weight")
        if tenant in weights:
            raise InvalidArgumentError(f"tenant {shown(tenant)} has two weights")
        try:
            weights[tenant] = float(weight)
        except ValueError as error:
            raise InvalidArgumentError(f"the weight of tenant {shown(tenant)} is {shown(weight)}, no number") from error
    return weights
