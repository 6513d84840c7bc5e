"""The baseline: whole fine-tuned models, one per tenant, of which as many stay in memory as the budget allows.

As strong as it can be made without sharing layers: weights lie in one flat file in the dtype that computes, swapping is
one read into memory that was there before, the rows of a batch that ask for one model run together, and those whose
models are in memory run first. A model that is used again while it is in memory gets its weights in the order of the
matrix product, as the engine keeps its own; at the first use that would cost more than it gains.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backends.adapters.device_bank import AdapterBank
from backends.adapters.head import Head
from backends.adapters.product import SegmentedAdapters
from backends.engine.compute_pool import ComputePool
from backends.engine.heads import HeadRow, logits
from backends.engine.layers import FilledLayers, PlainLayers, ServedLayers, served_layers
from backends.engine.layouts import LAYOUTS, attention
from backends.engine.packing import MicroBatch, pack_rows
from backends.engine.precision import Precision, fast_float_dtype, precision_of
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers

_CPU = torch.device("cpu")
_DTYPE = precision_of(fast_float_dtype(_CPU), _CPU).states
_NUM_LABELS = 2


@dataclass(frozen=True)
class WholeModel:
    """Layers and a head, all of them views into `memory`."""

    layers: UpperLayers
    head: Head
    memory: Tensor

    @classmethod
    def blank(cls, geometry: RootGeometry) -> WholeModel:
        with torch.device("meta"):
            layers = UpperLayers(geometry)
        shapes = {name: tensor.shape for name, tensor in layers.state_dict().items()}
        hidden = geometry.hidden_size
        shapes |= {"head.weight": torch.Size([_NUM_LABELS, hidden]), "head.bias": torch.Size([_NUM_LABELS])}
        memory = torch.empty(sum(shape.numel() for shape in shapes.values()), dtype=_DTYPE)
        parts = torch.split(memory, [shape.numel() for shape in shapes.values()])
        views = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        head = Head(views.pop("head.weight"), views.pop("head.bias"))
        layers.load_state_dict(views, assign=True)
        return cls(layers.eval().requires_grad_(False), head, memory)

    def read(self, path: Path, cold: bool) -> None:
        """Take over a file's weights; `cold` drops it from the page cache first."""
        with path.open("rb", buffering=0) as file:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            target = self.memory.view(torch.uint8).numpy().data
            while target:
                target = target[file.readinto(target) :]

    def logits(
        self, layers: ServedLayers, rows: Sequence[Tensor], geometry: RootGeometry, pool: ComputePool
    ) -> list[Tensor]:
        """Through these layers, which hold this model's weights in whatever order."""
        layout = LAYOUTS["ragged"](pool.sharing_for(geometry.hidden_size))
        packed = pack_rows(rows, [0] * len(rows), layout, lambda _: _no_adapters(geometry), _DTYPE, _CPU)
        head = self.head.to(torch.float32)

        @torch.inference_mode()
        def compute(batch: MicroBatch) -> list[Tensor]:
            attend = attention(batch.grid, *geometry.heads, _DTYPE, _CPU)
            states = layers(batch.hidden, attend, batch.adapters)
            spans = zip(batch.grid.starts, batch.grid.lengths, strict=True)
            return logits(states, [HeadRow(start, start + length, head, "cls") for start, length in spans])

        found: dict[int, Tensor] = {}
        for batch, of_rows in zip(packed.micro_batches, pool.run(compute, packed.micro_batches), strict=True):
            found |= zip(batch.grid.order, of_rows, strict=True)
        return [found[index] for index in range(len(rows))]


@lru_cache(maxsize=1)
def _no_adapters(geometry: RootGeometry) -> SegmentedAdapters:
    return SegmentedAdapters(AdapterBank(1, geometry, 1, _DTYPE, _CPU), [])


class WholeModels:
    """Least recently used models make room.

    Args:
        folder: Holds a file for each tenant.
        geometry: Of the models.
        max_resident: How many models stay in memory.
        cold: Whether files leave the page cache before they are read.
        quantised: Whether a model that is used again is brought into int8, as the engine quantises its layers.
    """

    def __init__(
        self, folder: Path, geometry: RootGeometry, max_resident: int, cold: bool, quantised: bool = False
    ) -> None:
        self._folder = folder
        self._precision = Precision(_DTYPE, "int8" if quantised else None)
        self._geometry = geometry
        self._max_resident = max_resident
        self._cold = cold
        self._compute_pool = ComputePool(torch.get_num_threads(), _CPU)
        self._resident: OrderedDict[str, WholeModel] = OrderedDict()
        self._layers: dict[str, ServedLayers] = {}
        self._fresh: set[str] = set()
        """Asked once so far: to bring weights into the product's order costs more than one batch gains."""
        self.swaps = 0

    @torch.inference_mode()
    def logits(self, tenants: Sequence[str], rows: Sequence[Tensor]) -> list[Tensor]:
        """Rows of any tenants, in their order."""
        rows_of: dict[str, list[int]] = {}
        for index, tenant in enumerate(tenants):
            rows_of.setdefault(tenant, []).append(index)
        found: dict[int, Tensor] = {}
        for tenant in sorted(rows_of, key=lambda tenant: tenant not in self._resident):
            own = rows_of[tenant]
            model = self._model(tenant)
            of_tenant = [rows[index].to(_DTYPE) for index in own]
            results = model.logits(self._layers[tenant], of_tenant, self._geometry, self._compute_pool)
            found |= dict(zip(own, results, strict=True))
        return [found[index] for index in range(len(rows))]

    def _model(self, tenant: str) -> WholeModel:
        model = self._resident.pop(tenant, None)
        if model is None:
            model = self._room()
            model.read(self._folder / tenant, self._cold)
            self._layers[tenant] = FilledLayers(PlainLayers(model.layers))
            self._fresh.add(tenant)
            self.swaps += 1
        elif tenant in self._fresh:
            self._fresh.discard(tenant)
            activation = self._geometry.activation
            self._layers[tenant] = served_layers(model.layers, activation, self._precision, _CPU)
        self._resident[tenant] = model
        return model

    def _room(self) -> WholeModel:
        """A new model's, or that of the one that was used longest ago."""
        if len(self._resident) < self._max_resident:
            return WholeModel.blank(self._geometry)
        tenant, model = self._resident.popitem(last=False)
        del self._layers[tenant]
        self._fresh.discard(tenant)
        return model


def write_whole_models(folder: Path, geometry: RootGeometry, tenants: Sequence[str], distinct: int) -> int:
    """Files of random weights, `distinct` of them, the others links to those; returns the bytes of one."""
    folder.mkdir(parents=True)
    model = WholeModel.blank(geometry)
    with torch.no_grad():
        for name, tensor in model.layers.state_dict().items():
            if tensor.ndim == 2:
                tensor.normal_(0.0, 0.02)
            else:
                tensor.fill_(1.0 if "norm.weight" in name else 0.0)
        model.head.weight.normal_(0.0, 0.1)
        model.head.bias.zero_()
    content = model.memory.view(torch.uint8).numpy()
    for number in range(min(distinct, len(tenants))):
        np.roll(content, 2 * number).tofile(folder / f"model{number}") if number else content.tofile(folder / "model0")
    for number, tenant in enumerate(tenants):
        os.link(folder / f"model{number % distinct}", folder / tenant)
    return model.memory.nbytes
