"""Room on the device for one kind of part at one width: a row for each hPLM there that has it."""

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
"""A pool is, when fewer than one row in as many is taken."""


class PartPool:
    """Rows are taken and freed one by one; tensors grow by a quarter, small ones more, when all rows are taken.

    Weights lie transposed, `[in, out]`, and all rows of a layer together: products of many small segments read them so
    several times faster, and where they lie. What lies beside a part that is narrower than its row is zeros, which
    changes nothing; a free row may hold anything.

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
        """More rows. Views of the old tensors stay what they are."""
        more = max(_LEAST_ROWS, min(self.num_rows, _DOUBLED_UP_TO_ROWS), self.num_rows // 4)
        num_rows = min(self._max_rows, self.num_rows + more)
        self._replace_tensors(num_rows, list(range(self.num_rows)))
        # The lowest rows first: neighbours are multiplied without gathering their weights.
        self._free = [*range(num_rows - 1, self.num_rows - 1, -1), *self._free]
        self.num_rows = num_rows

    def compacted(self) -> tuple[PartPool, Mapping[int, int]]:
        """A pool with half of its rows taken that holds what this one does, and where each row lies there.

        This one stays as it is: a batch that runs reads on in it, at the rows that it began with.
        """
        free = set(self._free)
        taken = [row for row in range(self.num_rows) if row not in free]
        smaller = copy.copy(self)
        smaller.num_rows = 2 * len(taken)
        smaller._replace_tensors(smaller.num_rows, taken)
        smaller._free = list(range(smaller.num_rows - 1, len(taken) - 1, -1))
        return smaller, {row: place for place, row in enumerate(taken)}

    def take(self, form: Form) -> int:
        """A row for a part of this form, which will fill it: where it is narrower, there are zeros."""
        if not self._free:
            self.grow()
        if form.shapes != self._widest:
            for tensor in self.tensors.values():
                tensor[:, self._free[-1]].zero_()
        return self._free.pop()

    def give_back(self, row: int) -> None:
        self._free.append(row)

    def view(self, row: int, form: Form) -> dict[str, Tensor]:
        """Where the tensors of a part of this form lie in a row, in their own shapes."""
        return {name: _narrow(self.tensors[name][:, row], shape) for name, shape in form.shapes}

    def _replace_tensors(self, num_rows: int, kept: list[int]) -> None:
        """By new ones, which begin with these rows of the old ones."""
        tensors, places = {}, torch.tensor(kept, dtype=torch.int64, device=self.device)
        for name, old in self.tensors.items():
            tensors[name] = self._zeros(name, num_rows)
            for new_layer, old_layer in zip(tensors[name], old, strict=True):
                torch.index_select(old_layer, 0, places, out=new_layer[: len(kept)])
        if self.device.type == "cuda":
            # A batch may read the old ones until it ends, and the new ones before anybody waits for these copies.
            for old in self.tensors.values():
                old.record_stream(torch.cuda.default_stream(self.device))
            torch.cuda.current_stream(self.device).synchronize()
        self.tensors = tensors

    def _zeros(self, name: str, num_rows: int) -> Tensor:
        num_layers, *shape = self._shapes[name]
        return torch.zeros(num_layers, num_rows, *shape, dtype=self.dtype, device=self.device)


def _stored(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A matrix per layer `[U, out, in]` lies as `[U, in, out]`; a vector per layer as it is."""
    return (shape[0], shape[2], shape[1]) if len(shape) == 3 else shape


def _narrow(stored: Tensor, shape: tuple[int, ...]) -> Tensor:
    shown = stored.transpose(-1, -2) if len(shape) == 3 else stored
    return shown[tuple(map(slice, shape))]
