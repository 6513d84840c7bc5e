"""The model of one hPLM while it is tuned: frozen shared layers, trainable adapters and head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
from backends.adapters.pooling import NO_POOLING, PAIR_POOLING, POOLED_STATES
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.hplm.trainable import Indices
from builder.construct.tasks.objective import NO_SCALE, Objective
from builder.construct.training.rows import padded_length, segments_of
from builder.settings.hplm import TuneSettings


@dataclass(frozen=True)
class EncodedSet:
    """Examples after the lower model; a target is what the task's objective knows of a row.

    Shape:
        rows: one `[L, H]` fp16 each; middles: of each pair the first token of the second segment.
    """

    rows: Sequence[Tensor]
    targets: Sequence[Any]
    lengths: Indices
    middles: Sequence[int | None]

    def padded(self, indices: Indices, device: torch.device) -> tuple[Tensor, Tensor]:
        """Some rows as `[B, L, H]` fp32, and the segment of each token (`segments_of`)."""
        rows = [self.rows[index] for index in indices]
        length = padded_length(self.lengths[indices])
        segments = segments_of(self.lengths[indices], [self.middles[index] for index in indices], length)
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        padded = functional.pad(padded, (0, 0, 0, length - padded.shape[1]))
        return padded.to(device, torch.float32), segments.to(device)


@dataclass(frozen=True)
class Tuned:
    """The weights of an hPLM as they are stored, what was measured of them, and the epoch that they are from."""

    adapters: AdapterSet
    head: Head
    pooling: str
    metrics: dict[str, float]
    epoch: int


class TunableHplm(nn.Module):
    """Trains the tensors of the adapters and the head.

    `scale` brings the head's raw outputs to the task's own scale, so that those learn around zero; the head that comes
    out of `head()` has it folded in.
    """

    def __init__(
        self,
        upper: UpperLayers,
        geometry: RootGeometry,
        adapters: AdapterSet,
        head: Head,
        pooling: str,
        scale: tuple[float, float] = NO_SCALE,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self._upper = upper.requires_grad_(False)
        self._num_heads = geometry.num_heads
        self._pool = POOL_FUNCTIONS[pooling]
        self._offset, self._factor = scale
        self._dropout = nn.Dropout(dropout)
        device = next(upper.parameters()).device
        self._adapters = adapters.map(lambda name, tensor: new_parameter(self, "adapters", name, tensor.to(device)))
        raw = scaled(head, -self._offset / self._factor, 1 / self._factor)
        self._head = raw.map(lambda name, tensor: new_parameter(self, "head", name, tensor.to(device)))

    def forward(self, rows: Tensor, segments: Tensor) -> Tensor:
        """`[B, L, H]` and `[B, L]` → `[B, C]`, or `[B, L, C]` without pooling."""
        return self.answer(self.read(rows, segments))

    def read(self, rows: Tensor, segments: Tensor) -> Tensor:
        states = self._upper(rows, padded_attention(self._num_heads, segments > 0), self._adapters)
        with torch.autocast(rows.device.type, enabled=False):
            return self._pool(states, segments).float()

    def read_each(self, rows: Tensor, segments: Tensor) -> Tensor:
        """Compute what a head would read after each upper layer, side by side: `[B, U·P]` or `[B, L, U·P]`."""
        attend = padded_attention(self._num_heads, segments > 0)
        # All of them here: a generator would compute the layers without mixed precision below.
        states = list(self._upper.states(rows, attend, self._adapters))
        with torch.autocast(rows.device.type, enabled=False):
            return torch.cat([self._pool(each, segments).float() for each in states], dim=-1)

    def answer(self, states: Tensor) -> Tensor:
        return self.answer_by(self._head, states)

    def answer_by(self, head: Head, states: Tensor) -> Tensor:
        """Compute the answers of a head whose raw outputs are on the same scale as those of the own one."""
        with torch.autocast(states.device.type, enabled=False):
            outputs = head.logits(self._dropout(states))
            return outputs * self._factor + self._offset

    def trained(self) -> dict[str, nn.Parameter]:
        """All that is trained, by name."""
        return trained_parameters(self)

    def adapters(self, weights: Mapping[str, Tensor]) -> AdapterSet:
        """The adapters with these weights, named as `trained` names them."""
        return self._adapters.map(lambda name, _: weights[parameter_name("adapters", name)].detach())

    def head(self, weights: Mapping[str, Tensor]) -> Head:
        raw = self._head.map(lambda name, _: weights[parameter_name("head", name)].detach())
        return scaled(raw, self._offset, self._factor)


def new_parameter(module: nn.Module, part: str, name: str, tensor: Tensor) -> Tensor:
    """Let a module train a copy of a tensor, under the `parameter_name` of part and name."""
    parameter = nn.Parameter(tensor.detach().float().clone())
    module.register_parameter(parameter_name(part, name), parameter)
    return parameter


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}


def parameter_name(part: str, name: str) -> str:
    """Modules take no names with dots."""
    return f"{part}.{name}".replace(".", "__")


def scaled(head: Head, offset: float, factor: float) -> Head:
    """A head whose outputs are `offset + factor · outputs`."""
    if (offset, factor) == NO_SCALE:
        return head

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "bias":
            return tensor.float() * factor + offset
        return tensor.float() * factor if name == "weight" else tensor

    return head.map(change)


def new_head(num_outputs: int, width: int, rng: torch.Generator = torch.default_generator) -> Head:
    limit = 1 / math.sqrt(width)
    weight = torch.empty(num_outputs, width).uniform_(-limit, limit, generator=rng)
    return Head(weight, torch.zeros(num_outputs))


def pooling_for(objective: Objective[Any], settings: TuneSettings) -> str:
    """The mean of a pair tells its segments apart."""
    if objective.about_words:
        return NO_POOLING
    return PAIR_POOLING if objective.about_pairs and settings.pooling == "mean" else settings.pooling


def pooled_width(pooling: str, hidden_size: int) -> int:
    return POOLED_STATES[pooling] * hidden_size


def head_through(head: Head, own: nn.Module, pooled_states: int) -> Head:
    """Return the head that reads states as `head` reads those that a linear layer, `own`, maps them to.

    Of pairs it does so nearly: the differences of mapped states are the mapped ones, but not their absolute values.
    """
    weight, bias = (own.get_parameter(name).detach().cpu() for name in ("weight", "bias"))
    reading = (head.weight if head.dense_weight is None else head.dense_weight).float()
    by_state = reading.reshape(len(reading), pooled_states, -1)
    read, shift = (by_state @ weight).flatten(1), by_state[:, 0] @ bias
    if head.dense_bias is None:
        return replace(head, weight=read, bias=head.bias.float() + shift)
    return replace(head, dense_weight=read, dense_bias=head.dense_bias.float() + shift)
