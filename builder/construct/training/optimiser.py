"""The optimiser of all trainings: AdamW over groups of parameters, each with a rate and a decay of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

_BETAS = 0.9, 0.999
_EPSILON = 1e-8


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that learn at one rate; their names are those in the checkpoint."""

    parameters: Mapping[str, nn.Parameter]
    learning_rate: float
    weight_decay: float


class _Moments(NamedTuple):
    """What is remembered of a parameter's gradients; the names are those of PyTorch's checkpoints."""

    step: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    @classmethod
    def first(cls, parameter: nn.Parameter) -> _Moments:
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return cls(step, torch.zeros_like(parameter), torch.zeros_like(parameter))

    @classmethod
    def of(cls, state: Mapping[str, Tensor], parameter: nn.Parameter) -> _Moments:
        return cls(*(state[name].to(parameter.device, copy=True) for name in cls._fields))


class AdamW:
    """Computes and stores what `torch.optim.AdamW` does, which first imports a compiler: a second of every training."""

    def __init__(self, groups: Sequence[ParameterGroup]) -> None:
        self._groups = groups
        self._parameters = [parameter for group in groups for parameter in group.parameters.values()]
        self._moments: dict[nn.Parameter, _Moments] = {}

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, share: float) -> None:
        """Change the parameters that have gradients, at this share of their groups' rates."""
        for group in self._groups:
            learning = [one for one in group.parameters.values() if one.grad is not None]
            moments = [self._moments_of(one) for one in learning]
            adamw(
                list(learning),
                [one.grad for one in learning if one.grad is not None],
                [each.exp_avg for each in moments],
                [each.exp_avg_sq for each in moments],
                [],
                [each.step for each in moments],
                fused=True,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=group.learning_rate * share,
                weight_decay=group.weight_decay,
                eps=_EPSILON,
                maximize=False,
            )

    def state_dict(self) -> dict[str, Any]:
        numbered = enumerate(self._parameters)
        return {"state": {number: self._moments[one]._asdict() for number, one in numbered if one in self._moments}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, here or of PyTorch's own AdamW."""
        of_number = {number: self._parameters[number] for number in state["state"]}
        self._moments = {one: _Moments.of(state["state"][number], one) for number, one in of_number.items()}

    def _moments_of(self, parameter: nn.Parameter) -> _Moments:
        if parameter not in self._moments:
            self._moments[parameter] = _Moments.first(parameter)
        return self._moments[parameter]
