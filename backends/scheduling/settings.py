"""What an export decides about the policy."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum

from backends.errors import InvalidArgumentError, shown
from backends.model_settings import ModelSettings
from backends.scheduling.ageing import Ageing

POLICY_VARIABLE = "HPLM_POLICY"
"""Goes before what an export says, for one run of the server."""


class PolicyName(StrEnum):
    FCFS = "fcfs"
    SJF = "sjf"
    EDF = "edf"
    LEAST_SLACK = "least-slack"
    DAS = "das"
    SLOTTED_DAS = "slotted-das"


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
        """Of Theorem 5.1."""
        return self.eta * self.q / (self.eta * self.q + 1)


@dataclass(frozen=True)
class PolicySettings:
    """A policy and what may be set of it; what a policy does not read is still checked."""

    name: PolicyName = PolicyName.FCFS
    das: DasSettings = field(default_factory=DasSettings)
    ageing: Ageing = field(default_factory=Ageing)

    @property
    def parameters(self) -> dict[str, str]:
        """As a model's configuration carries them."""
        return {
            "policy": self.name.value,
            "eta": str(self.das.eta),
            "q": str(self.das.q),
            "patience_ms": str(self.ageing.patience_us // 1000),
        }

    @classmethod
    def from_model(cls, settings: ModelSettings) -> PolicySettings:
        name = os.environ.get(POLICY_VARIABLE) or settings.text("policy", PolicyName.FCFS)
        das = DasSettings(settings.fraction("eta", DasSettings.eta), settings.fraction("q", DasSettings.q))
        ageing = Ageing(1000 * settings.number("patience_ms", Ageing.patience_us // 1000))
        return cls(policy_name(name), das, ageing)


def policy_name(name: str) -> PolicyName:
    if name not in list(PolicyName):
        raise InvalidArgumentError(f"policy {shown(name)} is not one of {', '.join(PolicyName)}")
    return PolicyName(name)
