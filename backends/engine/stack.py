"""One root's shared upper half on the device, with the slots and heads of the hPLMs that run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.device_bank import AdapterBank
from backends.adapters.head import Head
from backends.adapters.parts import MAX_WIDTH
from backends.adapters.product import BatchAdapters, SegmentedAdapters
from backends.adapters.segments import Segment
from backends.adapters.slots import SlotLease, SlotTable
from backends.engine.crew import Crew
from backends.engine.heads import HeadRow, logits
from backends.engine.layers import served_layers
from backends.engine.layouts import LAYOUT_NAMES, Isolated, attention, layout_named
from backends.engine.packing import MicroBatch, PackedRows, pack_rows
from backends.engine.streams import CopyStream
from backends.errors import InvalidArgumentError
from backends.root.store import RootFolder

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class StackSettings:
    """Where and how a stack computes; `num_slots` includes the identity.

    `layout` is how a batch's rows are laid out; `ragged`, without padding, measures best (`bench.ragged`), the others
    are there to be compared with it.
    """

    device: str = "cpu"
    dtype: str = "bf16"
    num_slots: int = 65
    max_width: int = MAX_WIDTH
    layout: str = "ragged"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.layout not in LAYOUT_NAMES:
            raise InvalidArgumentError(f"layout {self.layout!r} is not one of {', '.join(LAYOUT_NAMES)}")
        if not 1 <= self.max_width <= MAX_WIDTH:
            raise InvalidArgumentError(f"max_width is {self.max_width}; it can be 1 to {MAX_WIDTH}")


@dataclass(frozen=True)
class ReadyHplm:
    """An hPLM whose adapters are pinned in a slot."""

    lease: SlotLease
    head: Head
    pooling: str


class UpperStack:
    """Loads once; then `ready` pins an hPLM, `run` computes rows of any mix of pinned ones, `release` lets go.

    Args:
        root: Whose upper half.
        settings: Where and how.
        crew: Who computes; left out, one of its own, with as many threads as PyTorch would take here.
        adapters_of: How the adapters of a batch's segments are computed; others than the default are for comparison.
    """

    def __init__(
        self,
        root: RootFolder,
        settings: StackSettings,
        crew: Crew | None = None,
        adapters_of: Callable[[AdapterBank, Sequence[Segment]], BatchAdapters] = SegmentedAdapters,
    ) -> None:
        geometry, self._device = root.geometry, torch.device(settings.device)
        self._dtype = DTYPES[settings.dtype]
        self._geometry = geometry
        self._adapters_of = adapters_of
        self._layers = served_layers(root.upper(), geometry.activation, self._dtype, self._device)
        self._crew = Crew(torch.get_num_threads(), self._device) if crew is None else crew
        self._layout = layout_named(settings.layout, self._crew.sharing)
        self._isolated = Isolated(self._crew.sharing)
        self.fingerprint = root.fingerprint
        bank = AdapterBank(settings.num_slots, geometry, settings.max_width, self._dtype, self._device)
        self.slots = SlotTable(bank)
        self.copies = CopyStream(self._device)
        self._heads: dict[int, tuple[Head, str]] = {}
        """By slot, with how their states are pooled."""

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def hidden_size(self) -> int:
        return self._geometry.hidden_size

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        """Refuse a row that could not run, before it meets others in a batch."""
        if hidden_size != self._geometry.hidden_size:
            raise InvalidArgumentError(f"hidden rows are {hidden_size} wide, not {self._geometry.hidden_size}")
        if not 1 <= num_tokens <= self._geometry.max_tokens:
            raise InvalidArgumentError(f"a row has {num_tokens} tokens, not 1 to {self._geometry.max_tokens}")

    def ready(self, key: int, load: Callable[[], HplmArtifact]) -> ReadyHplm:
        """Pin the hPLM version `key`; `load` is called only if it is not resident."""
        loaded: list[tuple[Head, str]] = []

        def load_adapters() -> AdapterSet:
            artifact = load()
            loaded.append((artifact.head.map(self._own), artifact.pooling))
            return artifact.adapters

        with self.copies.copying():
            lease = self.slots.acquire(key, load_adapters)
            if loaded:
                self._heads[lease.slot] = loaded[0]
        return ReadyHplm(lease, *self._heads[lease.slot])

    def release(self, hplm: ReadyHplm) -> None:
        self.slots.release(hplm.lease)

    def pack(self, rows: Sequence[Tensor], hplms: Sequence[ReadyHplm], isolated: bool = False) -> PackedRows:
        """Copy rows to the device, laid out as the settings say, and sort out which adapters they need.

        Rows that are `isolated` cost more, and one that overflows spoils no other.

        The adapters' tensors are chosen here, beside the copies: whatever is loaded later, and makes pools grow, does
        not touch what this batch reads.
        """
        with self.copies.copying():
            slots = [self.slots.check(hplm.lease) for hplm in hplms]
            adapters_of = partial(self._adapters_of, self.slots.bank)
            layout = self._isolated if isolated else self._layout
            return pack_rows(rows, slots, layout, adapters_of, self._dtype, self._device)

    def run(
        self, packed: PackedRows, hplms: Sequence[ReadyHplm], middles: Sequence[int | None] | None = None
    ) -> list[Tensor]:
        """The logits of each row, in fp32 on the CPU, in the order in which the rows were handed to `pack`.

        `middles` says of pairs which token is the first of the second half; left out, all rows are single texts.
        """
        results: dict[int, Tensor] = {}
        middles_of_rows = middles or [None] * len(hplms)

        def run(batch: MicroBatch) -> list[Tensor]:
            order = batch.grid.order
            return self._run(batch, [hplms[index] for index in order], [middles_of_rows[index] for index in order])

        for batch, logits_of_rows in zip(packed.micro_batches, self._crew.run(run, packed.micro_batches), strict=True):
            results.update(zip(batch.grid.order, logits_of_rows, strict=True))
        return _on_cpu([results[index] for index in range(len(results))])

    @torch.inference_mode()
    def _run(self, batch: MicroBatch, hplms: Sequence[ReadyHplm], middles: Sequence[int | None]) -> list[Tensor]:
        """Of the rows in the order of their places."""
        for hplm in hplms:
            self.slots.check(hplm.lease)
        attend = attention(batch.grid, self._geometry.num_heads, self._dtype, self._device)
        states = self._layers(batch.hidden, attend, batch.adapters)
        places = zip(batch.grid.starts, batch.grid.lengths, hplms, middles, strict=True)
        rows = [
            HeadRow(start, start + length, hplm.head, hplm.pooling, middle) for start, length, hplm, middle in places
        ]
        return logits(states, rows)

    def _own(self, _: str, tensor: Tensor) -> Tensor:
        """A copy, even of what is in fp32 already: a view would keep the file that it was mapped from."""
        return tensor.to(device=self._device, dtype=torch.float32, copy=True)


def _on_cpu(results: list[Tensor]) -> list[Tensor]:
    """All of them in one copy."""
    if results[0].device.type == "cpu":
        return results
    sizes = [result.numel() for result in results]
    flat = torch.split(torch.cat([result.flatten() for result in results]).cpu(), sizes)
    return [one.view(result.shape) for one, result in zip(flat, results, strict=True)]
