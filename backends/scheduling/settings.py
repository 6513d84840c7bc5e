"""What an export decides about scheduling: batches, the policy, limits of the queue, and the tenants' shares."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from backends.errors import InvalidArgumentError, shown
from backends.model_settings import ModelSettings

if TYPE_CHECKING:
    from backends.scheduling.waiting_room import Indices, WaitingRoom

POLICY_VARIABLE = "HPLM_POLICY"
"""Goes before what an export says, for one run of the server."""
AGED_PART = 4
"""One part in so many of the batches belongs to aged jobs."""
_US_PER_MS = 1000


class PolicyName(StrEnum):
    FCFS = "fcfs"
    SJF = "sjf"
    EDF = "edf"
    LEAST_SLACK = "least-slack"
    DAS = "das"
    SLOTTED_DAS = "slotted-das"


@dataclass(frozen=True)
class Capacity:
    """What one batch may hold at most. A single job always fits, however long it is."""

    max_rows: int = 64
    max_tokens: int = 4096
    max_adapters: int = 64

    def __post_init__(self) -> None:
        if min(self.max_rows, self.max_tokens, self.max_adapters) < 1:
            raise InvalidArgumentError("a batch must have room for one row, one token and one adapter")

    def part(self, count: int) -> Capacity:
        """One of `count` equal parts, at least with room for one row."""
        return Capacity(*(max(1, limit // count) for limit in (self.max_rows, self.max_tokens, self.max_adapters)))


@dataclass(frozen=True)
class Ageing:
    """Reserves a part of the batches for jobs without a deadline that have waited for `patience_us`.

    Semantics:
        A job with a deadline ends by it, answered or rejected. One without would wait for ever behind a stream of jobs
        that a policy prefers. Once it has waited for `patience_us` it is *aged*, and then
        - of each batch a quarter of the rows, tokens and adapters goes to aged jobs of its stack first, oldest first,
          and at least to one of them, however long;
        - each fourth batch is of the stack of the oldest aged job.
        So the oldest aged job runs in one of the next four batches, and jobs with deadlines keep three quarters.
    """

    patience_us: int = 1_000_000

    def __post_init__(self) -> None:
        if self.patience_us < 0:
            raise InvalidArgumentError(f"jobs without a deadline cannot age before they come: {self.patience_us} us")

    def aged(self, waiting: WaitingRoom[Any], now_us: int) -> Indices:
        """The aged jobs, oldest first."""
        return waiting.without_deadline(arrived_by_us=now_us - self.patience_us)

    def chooses_stack(self, waiting: WaitingRoom[Any]) -> bool:
        """Whether it is the turn of the oldest aged job's stack, if there is one."""
        return waiting.batches_taken % AGED_PART == 0


@dataclass(frozen=True)
class DasSettings:
    """The two numbers of the algorithm, both in (0, 1).

    Args:
        eta: The more, the more a batch is worth now.
        q: The less, the more jobs compete by their deadlines. The paper takes 1 - eta.
    """

    eta: float = 0.5
    q: float = 0.5

    def __post_init__(self) -> None:
        for name, value in (("eta", self.eta), ("q", self.q)):
            if not 0 < value < 1:
                raise InvalidArgumentError(f"{name} must lie between 0 and 1, not {value}")

    @property
    def bound(self) -> float:
        """The competitive ratio of Theorem 5.1."""
        return self.eta * self.q / (self.eta * self.q + 1)


@dataclass(frozen=True)
class PolicySettings:
    """A policy and what may be set of it; what a policy does not read is still checked."""

    name: PolicyName = PolicyName.FCFS
    das: DasSettings = field(default_factory=DasSettings)
    ageing: Ageing = field(default_factory=Ageing)

    @property
    def parameters(self) -> dict[str, str]:
        """The settings as a model's configuration carries them."""
        return {
            "policy": self.name.value,
            "eta": str(self.das.eta),
            "q": str(self.das.q),
            "patience_ms": str(self.ageing.patience_us // _US_PER_MS),
        }

    @classmethod
    def from_model(cls, settings: ModelSettings) -> PolicySettings:
        name = os.environ.get(POLICY_VARIABLE) or settings.text("policy", PolicyName.FCFS)
        das = DasSettings(settings.fraction("eta", DasSettings.eta), settings.fraction("q", DasSettings.q))
        ageing = Ageing(_US_PER_MS * settings.number("patience_ms", Ageing.patience_us // _US_PER_MS))
        return cls(policy_name(name), das, ageing)


def policy_name(name: str) -> PolicyName:
    if name not in list(PolicyName):
        raise InvalidArgumentError(f"policy {shown(name)} is not one of {', '.join(PolicyName)}")
    return PolicyName(name)


@dataclass(frozen=True)
class ShareSettings:
    """Weights by tenant, 1 for all others; the registry's change while a server runs.

    A tenant may request `burst_us` of device time, times its weight, at once before it stands behind others.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    burst_us: float = 50_000.0

    def __post_init__(self) -> None:
        if not self.burst_us >= 0:
            raise InvalidArgumentError(f"a burst cannot be {self.burst_us:g} us long")

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)


@dataclass(frozen=True)
class AdmissionSettings:
    """Limits of one engine.

    `max_waiting` rows may wait, `tenant_quota` of one tenant (None: half of all), or what `quotas` say of it. With
    `predicts`, rows that cannot be answered before their deadline are rejected at once; the safety margin of
    predictions is at least `margin_percent`.
    """

    max_waiting: int = 10_000
    tenant_quota: int | None = None
    predicts: bool = True
    margin_percent: int = 25
    shares: ShareSettings = field(default_factory=ShareSettings)
    quotas: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_waiting < 1:
            raise InvalidArgumentError(f"at least 1 row may wait, not {self.max_waiting}")
        if self.tenant_quota is not None and self.tenant_quota < 1:
            raise InvalidArgumentError(f"at least 1 row of a tenant may wait, not {self.tenant_quota}")
        if not 0 <= self.margin_percent <= 400:
            raise InvalidArgumentError(f"a margin of {self.margin_percent} percent is not between 0 and 400")

    def quota_of(self, tenant: str) -> int:
        """Return how many rows of a tenant may wait."""
        of_all = max(1, self.max_waiting // 2) if self.tenant_quota is None else self.tenant_quota
        return self.quotas.get(tenant, of_all)

    def with_live(self, weights: Mapping[str, float], quotas: Mapping[str, int]) -> AdmissionSettings:
        """Take tenants' weights and quotas from mappings that may change."""
        return replace(self, shares=replace(self.shares, weights=weights), quotas=quotas)

    @property
    def parameters(self) -> dict[str, str]:
        """The settings as a model's configuration carries them."""
        quota = {} if self.tenant_quota is None else {"tenant_quota": str(self.tenant_quota)}
        return {
            "max_waiting": str(self.max_waiting),
            **quota,
            "admission": str(self.predicts).lower(),
            "margin_percent": str(self.margin_percent),
            "burst_ms": str(round(self.shares.burst_us / _US_PER_MS)),
        }

    @classmethod
    def from_model(cls, settings: ModelSettings) -> AdmissionSettings:
        if "tenant_weights" in settings.parameters:
            raise InvalidArgumentError(
                "weights of tenants are in the registry now: 'hplm quota set TENANT --weight …', then 'hplm export'"
            )
        quota = settings.number("tenant_quota", 0)
        burst_ms = settings.number("burst_ms", round(ShareSettings.burst_us / _US_PER_MS))
        return cls(
            max_waiting=settings.number("max_waiting", cls.max_waiting),
            tenant_quota=quota if "tenant_quota" in settings.parameters else None,
            predicts=settings.flag("admission", cls.predicts),
            margin_percent=settings.number("margin_percent", cls.margin_percent),
            shares=ShareSettings(burst_us=float(_US_PER_MS * burst_ms)),
        )
