"""What runs next: the interface of all policies, the simple ones, and policies by name as an export chooses them.

Usage:
    policy = policy_of(PolicySettings.from_model(settings), cost_model)
    indices = policy.select(waiting, now_us, capacity)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from backends.errors import InvalidArgumentError
from backends.scheduling.batch_builder import BatchBuilder, Decision
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.deadline_aware import DeadlineAware, SlottedDeadlineAware
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order
from backends.scheduling.settings import Ageing, Capacity, PolicyName, PolicySettings
from backends.scheduling.waiting_room import Float64, WaitingRoom
from backends.stack_key import StackKey


class Policy(Protocol):
    """Pure: the same room, clock and capacity give the same batch, and the room stays as it is."""

    @property
    def order(self) -> Order:
        """The order in which it runs jobs, approximated by one number of each."""
        ...

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        """Return the indices of the next batch, all of one stack; empty only if none waits."""
        ...


def policy_of(settings: PolicySettings, cost_model: Callable[[StackKey], CostModel] | None = None) -> Policy:
    """Make a policy; `cost_model` gives that of a stack as it is now, and is needed where time is predicted."""
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


class FirstComeFirstServed:
    """The stack of the first job runs, with as many of that stack's jobs as fit, in their order.

    Jobs wait in the order of their virtual start times (`fair_share`), so those of one tenant run as they came.
    """

    order = FairOrder()

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        batch = BatchBuilder(waiting, capacity)
        batch.add_until_full(np.flatnonzero(waiting.root == waiting.root[:1]))
        return batch.indices


class RankedPolicy(ABC):
    """Each job has a rank: the batch is of the first one's stack, in the order of the ranks.

    A job that does not fit is passed over. Among equals the one that waits longer goes first.
    """

    order: Order

    def __init__(self, ageing: Ageing = Ageing()) -> None:
        self._ageing = ageing

    @abstractmethod
    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        """Return a number for each job; the lowest goes first."""

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        if not len(waiting):
            return []
        decision = Decision.between(waiting, now_us, capacity, self._ageing)
        ranks = self.ranks(waiting, now_us)
        first = decision.candidates[ranks[decision.candidates].argmin()]
        batch, groups = decision.opened(int(waiting.root[first]))
        for indices in groups:
            batch.add_all_that_fit(indices[np.argsort(ranks[indices], kind="stable")])
        return batch.indices


class ShortestJobFirst(RankedPolicy):
    order = LengthOrder()

    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        return waiting.num_tokens.astype(np.float64)


class EarliestDeadlineFirst(RankedPolicy):
    """Jobs without a deadline come after all others."""

    order = DeadlineOrder()

    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        return waiting.deadline_us


class LeastSlack(RankedPolicy):
    """Slack is the time that a job can still wait: until its deadline, less what it would take alone.

    Alone, because its batch is not known yet. A job that could not make it even so still runs, because the prediction
    may be wrong, but after all jobs that can, like a job without a deadline.

    Args:
        cost_model: That of a stack, as it is now; asked at each decision, because it is corrected while it is used.
    """

    order = DeadlineOrder()

    def __init__(self, cost_model: Callable[[StackKey], CostModel], ageing: Ageing = Ageing()) -> None:
        super().__init__(ageing)
        self._cost_model = cost_model

    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        slack_us = waiting.deadline_us - now_us - self._alone_us(waiting)
        return np.where(slack_us >= 0, slack_us, np.inf)

    def _alone_us(self, waiting: WaitingRoom[Any]) -> Float64:
        alone_us = np.empty(len(waiting))
        for stack in np.unique(waiting.root).tolist():
            is_of_stack = waiting.root == stack
            model = self._cost_model(waiting.root_name(stack))
            lengths = waiting.num_tokens[is_of_stack]
            empty_us = model.predict_us(BatchShape(rows=1, tokens=0, squared_lengths=0, adapters=1))
            alone_us[is_of_stack] = empty_us + (model.per_token_us + model.per_squared_length_us * lengths) * lengths
        return alone_us
