"""The students of one hPLM while they are tuned: frozen shared layers, trainable adapters and heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
from backends.adapters.pooling import PAIR_POOLING, POOLED_STATES
from backends.adapters.recipe import AdapterRecipe
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.student_set import InputMaps, OutputMaps, StudentSet
from backends.root.student_shape import StudentShape
from backends.root.upper import UpperLayers
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.hplm.tunable import new_parameter, parameter_name, scaled, trained_parameters
from builder.construct.tasks.objective import NO_SCALE


@dataclass(frozen=True)
class StudentLayers:
    """A root's students, which adapters are tuned for."""

    layers: UpperLayers
    maps: OutputMaps
    inputs: InputMaps
    shape: StudentShape
    geometry: RootGeometry

    @classmethod
    def of(cls, students: StudentSet, device: torch.device) -> StudentLayers:
        layers, maps, inputs = students.layers(), students.maps(), students.inputs()
        return cls(layers.to(device), maps.to(device), inputs.to(device), students.shape, students.geometry)

    @property
    def device(self) -> torch.device:
        return next(self.layers.parameters()).device


@dataclass(frozen=True)
class TunedStudents:
    """The adapters and heads of all students as they are stored, and what was measured of them."""

    adapters: AdapterSet
    heads: tuple[Head, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    epoch: int = 0


class TunableStudents(nn.Module):
    """Trains the tensors of all students' adapters and heads.

    `scale` brings the sum of the heads' raw outputs to the task's own scale; the heads that come out of `heads` have it
    folded in, the offset into the first one's bias.

    Shape:
        rows `[B, L, H]`; segments `[B, L]`; states `[B, M·P]` or `[B, L, M·P]`: of each student what its head reads
    """

    def __init__(
        self,
        students: StudentLayers,
        start: TunedStudents,
        pooling: str,
        scale: tuple[float, float] = NO_SCALE,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self._layers = students.layers.requires_grad_(False)
        self._inputs = students.inputs.requires_grad_(False)
        self._shape = students.shape
        self._num_heads = students.geometry.num_heads
        self._pool = POOL_FUNCTIONS[pooling]
        self._offset, self._factor = scale
        self._dropout = nn.Dropout(dropout)
        device = students.device
        self._adapters = start.adapters.map(
            lambda name, tensor: new_parameter(self, "adapters", name, tensor.to(device))
        )
        self._heads = [
            scaled(head, -self._own_offset(student) / self._factor, 1 / self._factor).map(
                lambda name, tensor, part=_head(student): new_parameter(self, part, name, tensor.to(device))  # type: ignore[misc]
            )
            for student, head in enumerate(start.heads)
        ]

    def forward(self, rows: Tensor, segments: Tensor) -> Tensor:
        return self.answer(self.read(rows, segments))

    def read(self, rows: Tensor, segments: Tensor) -> Tensor:
        attend = padded_attention(self._num_heads, segments > 0)
        found = []
        for student in range(self._shape.count):
            hidden = self._inputs.enter(student, rows)
            states = self._layers(hidden, attend, self._adapters, self._shape.span(student))
            with torch.autocast(rows.device.type, enabled=False):
                found.append(self._pool(states, segments).float())
        return torch.cat(found, dim=-1)

    def of_first(self, states: Tensor) -> Tensor:
        """Take the first student's from the states of all."""
        return states.chunk(self._shape.count, dim=-1)[0]

    def answers(self, states: Tensor) -> list[Tensor]:
        """Compute the answers of the first student, of the first two, and so on: `[B, C]` or `[B, L, C]` each."""
        with torch.autocast(states.device.type, enabled=False):
            pairs = zip(self._heads, states.chunk(self._shape.count, dim=-1), strict=True)
            sums = accumulate(head.logits(self._dropout(each)) for head, each in pairs)
            return [each * self._factor + self._offset for each in sums]

    def answer(self, states: Tensor) -> Tensor:
        """Compute the answers of all students together."""
        return self.answers(states)[-1]

    def answer_each(self, rows: Tensor, segments: Tensor) -> Tensor:
        """Compute the answers of all numbers of students, side by side: `[B, M·C]` or `[B, L, M·C]`."""
        return torch.cat(self.answers(self.read(rows, segments)), dim=-1)

    def trained(self) -> dict[str, nn.Parameter]:
        """Return all that is trained, by name."""
        return trained_parameters(self)

    def tuned(self, weights: Mapping[str, Tensor]) -> tuple[AdapterSet, tuple[Head, ...]]:
        """Return adapters and heads with these weights, named as `trained` names them."""
        adapters = self._adapters.map(lambda name, _: weights[parameter_name("adapters", name)].detach())
        heads = [
            head.map(lambda name, _, part=_head(student): weights[parameter_name(part, name)].detach())  # type: ignore[misc]
            for student, head in enumerate(self._heads)
        ]
        scales = ((self._own_offset(student), self._factor) for student in range(len(heads)))
        return adapters, tuple(scaled(head, *scale) for head, scale in zip(heads, scales, strict=True))

    def _own_offset(self, student: int) -> float:
        return self._offset if student == 0 else 0.0


def start_of(students: StudentLayers, recipe: AdapterRecipe, head: Head, pooling: str) -> TunedStudents:
    """Return adapters that change nothing, and heads by which students say what they say to the hPLM's own `head`.

    What is pooled of a sum of mapped states is the sum of what is pooled, except for pairs, and a dense layer in front
    is not linear: then the first student's head is the hPLM's own, cut to the width of narrow students, and the others'
    say nothing yet.
    """
    adapters = recipe.identity(students.geometry, students.layers)
    maps = students.maps
    if head.dense_weight is not None or pooling == PAIR_POOLING:
        first = _through(head, maps[0], POOLED_STATES[pooling]) if len(students.inputs) else head
        return TunedStudents(adapters, (first, *[_silent(first)] * (len(maps) - 1)))
    silent = replace(head, bias=torch.zeros(len(head.bias)))
    heads = (_through(silent if student else head, each, 1) for student, each in enumerate(maps))
    return TunedStudents(adapters, tuple(heads))


def _through(head: Head, own: nn.Module, pooled_states: int) -> Head:
    """Return the head that reads a student's states as `head` reads mapped ones.

    Of pairs it does so nearly: the differences of mapped states are the mapped ones, but not their absolute values.
    """
    weight, bias = (own.get_parameter(name).detach().cpu() for name in ("weight", "bias"))
    reading = (head.weight if head.dense_weight is None else head.dense_weight).float()
    by_state = reading.reshape(len(reading), pooled_states, -1)
    read, shift = (by_state @ weight).flatten(1), by_state[:, 0] @ bias
    if head.dense_bias is None:
        return replace(head, weight=read, bias=head.bias.float() + shift)
    return replace(head, dense_weight=read, dense_bias=head.dense_bias.float() + shift)


def _silent(head: Head) -> Head:
    said = ("weight", "bias")
    return head.map(lambda name, one: torch.zeros_like(one) if name in said else one.clone())


def _head(student: int) -> str:
    return f"head{student}"
