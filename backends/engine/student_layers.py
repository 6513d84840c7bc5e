"""One root's students on the device, with the slots and heads of the hPLMs that run on them.

A student reads the hidden rows, a narrow one through a map into its own width, or in a chain what the one before
computed. Each hPLM has adapters in all of them, in one slot. So the students are one run of layers, and each passes a
span of it. A row's logits are in a chain those of the last of its students, in parallel the sum over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.slots import SlotLease
from backends.engine.compute_pool import ComputePool
from backends.engine.heads import HeadRow, logits
from backends.engine.layers import served_linear
from backends.engine.layouts import MakeLayout
from backends.engine.packing import MicroBatch, PackedRows
from backends.engine.precision import precision_of
from backends.engine.slotted_layers import SlottedLayers, StackSettings, on_cpu, pays
from backends.errors import HplmError
from backends.root.student_set import StudentSet


class ReadyStudents(NamedTuple):
    """An hPLM whose adapters in the students are pinned in a slot.

    Attributes:
        lease: The slot.
        heads: One for each student.
        temperatures: Of the answers of one student, of two, and so on.
        best: The number of students that is best for it.
        pooling: Of all heads.
    """

    lease: SlotLease
    heads: tuple[Head, ...]
    temperatures: tuple[float, ...]
    best: int
    pooling: str


@dataclass(frozen=True)
class StudentRow:
    """A row of an hPLM that the first `count` students answer; `middle` is the first token of a second segment."""

    hplm: ReadyStudents
    count: int
    middle: int | None = None


@dataclass(frozen=True)
class _Share:
    """A micro-batch in some students, counted from 0: all of a chain, or one of those in parallel."""

    batch: MicroBatch
    students: range


class StudentLayers(SlottedLayers):
    """The students of a root: `ready` pins an hPLM, `run` computes rows of pinned hPLMs, `release` unpins.

    On a CPU the compute pool's threads take shares of micro-batches, and of students in parallel; on a GPU these run in
    turn.

    Args:
        students: The set.
        settings: Device, precision and limits.
        compute_pool: Threads that compute; by default a pool of its own, with PyTorch's number of threads.
        layout_of: Makes the layout; by default the one that the settings name.
    """

    def __init__(
        self,
        students: StudentSet,
        settings: StackSettings,
        compute_pool: ComputePool | None = None,
        layout_of: MakeLayout | None = None,
    ) -> None:
        precision = precision_of(settings.dtype, torch.device(settings.device))
        layers = students.layers(), students.geometry
        super().__init__(*layers, settings, precision, compute_pool, layout_of=layout_of)
        self.shape = students.shape
        self._row_width = students.hidden_size
        inputs = (each for each in students.inputs() if isinstance(each, nn.Linear))
        self._inputs = [served_linear(each, precision, self.device) for each in inputs]
        """A map into each narrow student's width; none where students are as wide as the rows."""
        self._heads: dict[int, tuple[tuple[Head, ...], tuple[float, ...], int, str]] = {}
        """By slot: what `ReadyStudents` has beside its lease."""

    @property
    def hidden_size(self) -> int:
        return self._row_width

    def ready(self, key: int, load: Callable[[], HplmArtifact]) -> ReadyStudents:
        """Pin the hPLM version `key`; `load` is called only if it is not resident."""
        loaded: list[tuple[tuple[Head, ...], tuple[float, ...], int, str]] = []

        def load_adapters() -> AdapterSet:
            artifact = load()
            if artifact.students is None:
                raise HplmError(f"hPLM {artifact.hplm!r} has nothing for students")
            students = artifact.students
            heads = tuple(head.map(self.own) for head in students.heads)
            temperatures = tuple(step.temperature for step in students.steps)
            loaded.append((heads, temperatures, students.best, artifact.pooling))
            return students.adapters

        with self.copies.copying():
            lease = self.slots.acquire(key, load_adapters)
            if loaded:
                self._heads[lease.slot] = loaded[0]
        return ReadyStudents(lease, *self._heads[lease.slot])

    def release(self, hplm: ReadyStudents) -> None:
        self.slots.release(hplm.lease)

    def pack(self, rows: Sequence[Tensor], hplms: Sequence[ReadyStudents], isolated: bool = False) -> PackedRows:
        """Copy rows to the device; see `pack_leased`."""
        return self.pack_leased(rows, [hplm.lease for hplm in hplms], isolated)

    def run(self, packed: PackedRows, rows: Sequence[StudentRow]) -> list[Tensor]:
        """Compute the logits of each row, in fp32 on the CPU, in the order of `pack`.

        The summands of a row are added in the order of the students, so more of them in parallel add to the same sum.
        """
        results: dict[int, Tensor] = {}

        def run(share: _Share) -> dict[int, Tensor]:
            return self._run(share, rows)

        for of_share in self._compute_pool.run(run, self._shares(packed, rows)):
            for index, summand in of_share.items():
                results[index] = results[index] + summand if index in results else summand
        return on_cpu([results[index] for index in range(len(results))])

    def _shares(self, packed: PackedRows, rows: Sequence[StudentRow]) -> list[_Share]:
        """Cut a batch into shares, those of one micro-batch in the order of the students."""
        shares = []
        for batch in packed.micro_batches:
            students = range(max(rows[index].count for index in batch.grid.order))
            parts = [students] if self.shape.is_chained else [range(each, each + 1) for each in students]
            shares += [_Share(batch, part) for part in parts]
        return shares

    @torch.inference_mode()
    def _run(self, share: _Share, rows: Sequence[StudentRow]) -> dict[int, Tensor]:
        """Compute what the students of a share say, by the indices of the rows; a row leaves after its last student."""
        batch, indices = share.batch, share.batch.grid.order
        positions, found = list(range(len(indices))), dict[int, Tensor]()
        for student in share.students:
            stay = [each for each, index in enumerate(indices) if rows[index].count > student]
            positions, indices = [positions[each] for each in stay], [indices[each] for each in stay]
            slots = [self.slots.check(rows[index].hplm.lease) for index in indices]
            if pays(batch, positions, remaining=(share.students.stop - student) / len(share.students)):
                batch, positions = batch.narrowed(batch.hidden, positions, slots, {}), list(range(len(indices)))
            states = self._pass(student, batch)
            found |= self._says(student, states, batch, zip(positions, indices, strict=True), rows)
            batch = replace(batch, hidden=states)
        return found

    def _pass(self, student: int, batch: MicroBatch) -> Tensor:
        """Compute a student's states of what it reads."""
        hidden = self._inputs[student](batch.hidden) if student < len(self._inputs) else batch.hidden
        states: Tensor = self._layers(hidden, self.attention(batch), batch.adapters, self.shape.span(student))
        return states

    def _says(
        self,
        student: int,
        states: Tensor,
        batch: MicroBatch,
        places: Iterable[tuple[int, int]],
        rows: Sequence[StudentRow],
    ) -> dict[int, Tensor]:
        """Compute what a student says of the rows that ask it, given by their positions and indices."""
        asks = [(at, index) for at, index in places if not self.shape.is_chained or rows[index].count == student + 1]
        heads = [_head_row(batch, at, rows[index], student) for at, index in asks]
        return dict(zip((index for _, index in asks), logits(states, heads), strict=True))


def _head_row(batch: MicroBatch, position: int, row: StudentRow, student: int) -> HeadRow:
    start = batch.grid.starts[position]
    return HeadRow(start, start + batch.grid.lengths[position], row.hplm.heads[student], row.hplm.pooling, row.middle)
