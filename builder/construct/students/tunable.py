"""The students of one hPLM while they are tuned: frozen shared layers, trainable adapters and heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
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
    def are_first_layers(self) -> bool:
        """Whether students are the root's first upper layers as they are."""
        hidden_size = self.maps[0].get_parameter("weight").shape[0]
        return not self.shape.learns(hidden_size)

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

    `scale` brings what the heads say to the task's own scale; the heads that come out of `tuned` have it folded in, the
    offset into the bias of those that say everything by themselves.

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

        def run(student: int, hidden: Tensor) -> Tensor:
            entered = self._inputs.enter(student, hidden)
            states: Tensor = self._layers(entered, attend, self._adapters, self._shape.span(student))
            return states

        found = []
        for states in self._shape.pass_each(rows, run, self._shape.count):
            with torch.autocast(rows.device.type, enabled=False):
                found.append(self._pool(states, segments).float())
        return torch.cat(found, dim=-1)

    def whole(self, states: Tensor) -> list[Tensor]:
        """Take the states of the students that say everything by themselves from those of all."""
        each = states.chunk(self._shape.count, dim=-1)
        return [each[student] for student in self._shape.whole]

    def answers(self, states: Tensor) -> list[Tensor]:
        """Compute the answers of the first student, of the first two, and so on: `[B, C]` or `[B, L, C]` each."""
        with torch.autocast(states.device.type, enabled=False):
            pairs = zip(self._heads, states.chunk(self._shape.count, dim=-1), strict=True)
            says = self._shape.prefixes(head.logits(self._dropout(each)) for head, each in pairs)
            return [each * self._factor + self._offset for each in says]

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
        return self._offset if student in self._shape.whole else 0.0


def _head(student: int) -> str:
    return f"head{student}"
