"""Tenants' models in one process: the least recently used make room, and what waits runs tenant by tenant."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backends.adapters.length_groups import length_groups
from bench.kit.peers.bert import padded
from bench.kit.peers.runtime import LoadedModel, Runtime

WaitingRow = tuple[int, Tensor]
"""A tenant's number and hidden rows `[L, H]`."""
_MOST_TOKENS = 1024
"""Beyond this, batches gained nothing in any runtime."""
_CALL_COST_TOKENS = 32
"""Padding that costs as much as one more call."""


class TenantModels:
    """Models of tenants that lie in files alike.

    Args:
        runtime: What loads and runs them.
        path: The file that stands for every tenant's.
        max_resident: How many are in memory at most.
    """

    def __init__(self, runtime: Runtime, path: Path, max_resident: int) -> None:
        self._runtime, self._path, self._max_resident = runtime, path, max_resident
        self._resident: OrderedDict[int, LoadedModel] = OrderedDict()
        self.swaps = 0

    def logits(self, waiting: Sequence[WaitingRow], cold: bool = False) -> list[Tensor]:
        """Answer rows in their order; `cold` reads models from the disk, past the page cache."""
        rows_of: dict[int, list[int]] = {}
        for index, (tenant, _) in enumerate(waiting):
            rows_of.setdefault(tenant, []).append(index)
        found: dict[int, Tensor] = {}
        for tenant in sorted(rows_of, key=lambda tenant: tenant not in self._resident):
            model, own = self._model(tenant, cold), rows_of[tenant]
            rows = [waiting[index][1] for index in own]
            for batch in batches([len(row) for row in rows]):
                of_batch = [rows[index] for index in batch]
                results = model(*padded(of_batch, max(map(len, of_batch)), torch.float32))
                found |= zip((own[index] for index in batch), results, strict=True)
        return [found[index] for index in range(len(waiting))]

    def _model(self, tenant: int, cold: bool) -> LoadedModel:
        model = self._resident.pop(tenant, None)
        if model is None:
            if len(self._resident) >= self._max_resident:
                self._resident.popitem(last=False)
            if cold:
                _forget(self._path)
            model = self._runtime.load(self._path)
            self.swaps += 1
        self._resident[tenant] = model
        return model


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of about the same length together, and not too many tokens at once."""
    for group in length_groups(lengths, _CALL_COST_TOKENS):
        members = list(group)
        at_once = max(1, _MOST_TOKENS // max(lengths[index] for index in members))
        for start in range(0, len(members), at_once):
            yield members[start : start + at_once]


def _forget(path: Path) -> None:
    """Drop a model's files from the page cache."""
    for file in path.parent.glob(f"{path.stem}.*"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
