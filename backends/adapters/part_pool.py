"""Memory on the device for one kind of part at one width: one row for each resident hPLM that has it."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from backends.adapters.parts import Shapes
from backends.adapters.tensors import Form

_LEAST_ROWS = 2
_DOUBLED_UP_TO_ROWS = 8
_MOSTLY_FREE = 4
"""A pool is mostly free when fewer than one of this many rows is taken."""


class PartPool:
    """Rows that are taken and freed one by one; the tensors grow by a quarter, small ones more, when all are taken.

    Weights are stored transposed, `[in, out]`, with all rows of a layer together: products of many small segments read
    them several times faster this way, without a copy. A part narrower than its row is followed by zeros, which do not
    change its product. A free row may hold any values.

    Shape:
        tensors[name]: `[U, rows, …]`.
    """

    def __init__(self, shapes: Shapes, max_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self._widest = tuple(shapes.items())
        self._shapes = {name: _stored(shape) for name, shape in shapes.items()}
        self._max_rows = max_rows
        self.dtype = dtype
        self.device = device
        self._free: list[int] = []
        self.num_rows = 0
        self.tensors = {name: self._zeros(name, 0) for name in shapes}

    @property
    def must_grow(self) -> bool:
        return not self._free and self.num_rows < self._max_rows

    @property
    def is_empty(self) -> bool:
        return len(self._free) == self.num_rows

    @property
    def is_mostly_free(self) -> bool:
        return self.num_rows > _LEAST_ROWS and (self.num_rows - len(self._free)) * _MOSTLY_FREE < self.num_rows

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def grow(self) -> None:
        """Add rows. Views of the old tensors stay valid."""
        more = max(_LEAST_ROWS, min(self.num_rows, _DOUBLED_UP_TO_ROWS), self.num_rows // 4)
        num_rows = min(self._max_rows, self.num_rows + more)
        self._replace_tensors(num_rows, list(range(self.num_rows)))
        # The lowest rows first: neighbours are multiplied without gathering their weights.
        self._free = [*range(num_rows - 1, self.num_rows - 1, -1), *self._free]
        self.num_rows = num_rows

    def compacted(self) -> tuple[PartPool, Mapping[int, int]]:
        """Copy the taken rows into a pool of twice their number; returns it, and the new index of each row.

        This pool is left unchanged, because a running batch still reads it.
        """
        free = set(self._free)
        taken = [row for row in range(self.num_rows) if row not in free]
        smaller = copy.copy(self)
        smaller.num_rows = 2 * len(taken)
        smaller._replace_tensors(smaller.num_rows, taken)
        smaller._free = list(range(smaller.num_rows - 1, len(taken) - 1, -1))
        return smaller, {row: index for index, row in enumerate(taken)}

    def take(self, form: Form) -> int:
        """Take a row for a part of this form; the row is zero wherever the part is narrower."""
        if not self._free:
            self.grow()
        if form.shapes != self._widest:
            for tensor in self.tensors.values():
                tensor[:, self._free[-1]].zero_()
        return self._free.pop()

    def give_back(self, row: int) -> None:
        self._free.append(row)

    def view(self, row: int, form: Form) -> dict[str, Tensor]:
        """Return views of a row in the shapes of a part of this form."""
        return {name: _narrow(self.tensors[name][:, row], shape) for name, shape in form.shapes}

    def _replace_tensors(self, num_rows: int, kept: list[int]) -> None:
        """Allocate tensors that begin with the `kept` rows of the old ones."""
        tensors, indices = {}, torch.tensor(kept, dtype=torch.int64, device=self.device)
        for name, old in self.tensors.items():
            tensors[name] = self._zeros(name, num_rows)
            for new_layer, old_layer in zip(tensors[name], old, strict=True):
                torch.index_select(old_layer, 0, indices, out=new_layer[: len(kept)])
        if self.device.type == "cuda":
            # A running batch may read the old tensors until it ends; the next one reads the new ones without waiting.
            for old in self.tensors.values():
                old.record_stream(torch.cuda.default_stream(self.device))
            torch.cuda.current_stream(self.device).synchronize()
        self.tensors = tensors

    def _zeros(self, name: str, num_rows: int) -> Tensor:
        num_layers, *shape = self._shapes[name]
        return torch.zeros(num_layers, num_rows, *shape, dtype=self.dtype, device=self.device)


def _stored(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the stored shape: matrices `[U, out, in]` become `[U, in, out]`, vectors keep theirs."""
    return (shape[0], shape[2], shape[1]) if len(shape) == 3 else shape


def _narrow(stored: Tensor, shape: tuple[int, ...]) -> Tensor:
    shown = stored.transpose(-1, -2) if len(shape) == 3 else stored
    return shown[tuple(map(slice, shape))]
