"""Policies by name, as an export chooses them.

Usage:
    policy = policy_of(PolicySettings.from_model(settings), cost_model)
"""

from __future__ import annotations

from collections.abc import Callable

from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import CostModel
from backends.scheduling.deadline_aware import DeadlineAware
from backends.scheduling.first_come import FirstComeFirstServed
from backends.scheduling.ordered import EarliestDeadlineFirst, LeastSlack, ShortestJobFirst
from backends.scheduling.policy import Policy
from backends.scheduling.settings import PolicyName, PolicySettings
from backends.scheduling.slotted_deadline_aware import SlottedDeadlineAware
from backends.stack_key import StackKey


def policy_of(settings: PolicySettings, cost_model: Callable[[StackKey], CostModel] | None = None) -> Policy:
    """The policy; `cost_model` gives that of a root as it is now, and is needed where time is predicted."""
    match settings.name:
        case PolicyName.FCFS:
            return FirstComeFirstServed()
        case PolicyName.SJF:
            return ShortestJobFirst(settings.ageing)
        case PolicyName.EDF:
            return EarliestDeadlineFirst(settings.ageing)
        case PolicyName.DAS:
            return DeadlineAware(settings.das, settings.ageing)
        case PolicyName.SLOTTED_DAS:
            return SlottedDeadlineAware(settings.das, settings.ageing)
        case PolicyName.LEAST_SLACK:
            if cost_model is None:
                raise InvalidArgumentError(f"policy {settings.name.value!r} needs a cost model")
            return LeastSlack(cost_model, settings.ageing)
