"""Policies by name, as simulations choose them."""

from __future__ import annotations

from backends.scheduling.cost_model import CostModel
from backends.scheduling.policies import Policy, policy_of
from backends.scheduling.settings import PolicyName, PolicySettings, policy_name

POLICY_NAMES = tuple(name.value for name in PolicyName)


def policy_named(name: str, cost_model: CostModel) -> Policy:
    return policy_of(PolicySettings(policy_name(name)), lambda _: cost_model)
