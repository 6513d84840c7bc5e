"""One root's shared upper layers on the device, with the slots and heads of the hPLMs that run on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.device_bank import AdapterBank
from backends.adapters.head import Head
from backends.adapters.ladder import Ladder
from backends.adapters.parts import MAX_WIDTH
from backends.adapters.product import BatchAdapters, SegmentedAdapters
from backends.adapters.segments import Segment
from backends.adapters.slots import SlotLease, SlotTable
from backends.engine.compute_pool import ComputePool
from backends.engine.defaults import DTYPE, LAYOUT, NUM_SLOTS
from backends.engine.exits import Early, Exit, confidences, cuts_of
from backends.engine.heads import HeadRow, logits
from backends.engine.layers import served_layers
from backends.engine.layouts import LAYOUTS, Isolated, MakeLayout, attention, require_layout
from backends.engine.packing import MicroBatch, PackedRows, pack_rows
from backends.engine.precision import DTYPES, precision_of, smoothing_of
from backends.engine.streams import CopyStream
from backends.errors import InvalidArgumentError
from backends.root.encoder import Attend
from backends.root.int8_file import Smoothing
from backends.root.store import RootFolder


@dataclass(frozen=True)
class StackSettings:
    """Device, precision and limits of a stack.

    Attributes:
        dtype: What the layers compute in, one of `DTYPES`; with `int8` and `fp8`, the shared layers' products.
        num_slots: Number of adapter slots, with the identity's.
        max_width: Largest width of an hPLM's adapter part.
        layout: Layout of a batch's rows. `ragged` has no padding and is the fastest (`bench.ragged`); `slotted` suits
            the policy `slotted-das`.
    """

    device: str = "cpu"
    dtype: str = DTYPE
    num_slots: int = NUM_SLOTS
    max_width: int = MAX_WIDTH
    layout: str = LAYOUT

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        require_layout(self.layout)
        if not 1 <= self.max_width <= MAX_WIDTH:
            raise InvalidArgumentError(f"max_width is {self.max_width}; it can be 1 to {MAX_WIDTH}")


class ReadyHplm(NamedTuple):
    """An hPLM whose adapters are pinned in a slot."""

    lease: SlotLease
    head: Head
    pooling: str
    ladder: Ladder | None = None


OnEarly = Callable[[Sequence[tuple[int, Early]]], None]
"""Takes what is known of rows at their exits, each with its index, from any compute thread."""
LEAST_TO_NARROW = 0.04
"""Share of a batch's layers, over all tokens, that must be saved for the others to be laid out anew."""


@dataclass(frozen=True)
class _Row:
    """A row on its way through the layers; `index` is its place in the order of `pack`."""

    index: int
    hplm: ReadyHplm
    middle: int | None
    exit: Exit | None


class UpperStack:
    """The upper layers of a root: `ready` pins an hPLM, `run` computes rows of pinned hPLMs, `release` unpins.

    Args:
        root: Root of the layers.
        settings: Device, precision and limits.
        compute_pool: Threads that compute; by default a pool of its own, with PyTorch's number of threads.
        adapters_of: Computes the adapters of a batch's segments; a bench compares others with the default.
        layout_of: Makes the layout; by default the one that the settings name. A bench compares layouts of its own.
        smoothing: Of int8; by default the one that is stored beside the root.
    """

    def __init__(
        self,
        root: RootFolder,
        settings: StackSettings,
        compute_pool: ComputePool | None = None,
        adapters_of: Callable[[AdapterBank, Sequence[Segment]], BatchAdapters] = SegmentedAdapters,
        layout_of: MakeLayout | None = None,
        smoothing: Smoothing | None = None,
    ) -> None:
        geometry, self._device = root.geometry, torch.device(settings.device)
        self.precision = precision_of(settings.dtype, self._device)
        self._dtype = self.precision.states
        self._geometry = geometry
        self._adapters_of = adapters_of
        if smoothing is None and self.precision.products == "int8":
            smoothing = smoothing_of(root)
        self._layers = served_layers(root.upper(), geometry.activation, self.precision, self._device, smoothing)
        self._compute_pool = (
            ComputePool(torch.get_num_threads(), self._device) if compute_pool is None else compute_pool
        )
        sharing = self._compute_pool.sharing_for(geometry.hidden_size)
        self._layout = (layout_of or LAYOUTS[settings.layout])(sharing)
        self._isolated = Isolated(sharing)
        self.fingerprint = root.fingerprint
        bank = AdapterBank(settings.num_slots, geometry, settings.max_width, self._dtype, self._device)
        self.slots = SlotTable(bank)
        self.copies = CopyStream(self._device)
        self._heads: dict[int, tuple[Head, str, Ladder | None]] = {}
        """Heads by slot, each with its pooling, and the ladder where there is one."""

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def num_layers(self) -> int:
        return self._geometry.num_upper_layers

    @property
    def hidden_size(self) -> int:
        return self._geometry.hidden_size

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        """Raise `InvalidArgumentError` for a row that could not run, before it joins others in a batch."""
        if hidden_size != self._geometry.hidden_size:
            raise InvalidArgumentError(f"hidden rows are {hidden_size} wide, not {self._geometry.hidden_size}")
        if not 1 <= num_tokens <= self._geometry.max_tokens:
            raise InvalidArgumentError(f"a row has {num_tokens} tokens, not 1 to {self._geometry.max_tokens}")

    def ready(self, key: int, load: Callable[[], HplmArtifact]) -> ReadyHplm:
        """Pin the hPLM version `key`; `load` is called only if it is not resident."""
        loaded: list[tuple[Head, str, Ladder | None]] = []

        def load_adapters() -> AdapterSet:
            artifact = load()
            loaded.append((artifact.head.map(self._own), artifact.pooling, self._own_ladder(artifact.ladder)))
            return artifact.adapters

        with self.copies.copying():
            lease = self.slots.acquire(key, load_adapters)
            if loaded:
                self._heads[lease.slot] = loaded[0]
        return ReadyHplm(lease, *self._heads[lease.slot])

    def release(self, hplm: ReadyHplm) -> None:
        self.slots.release(hplm.lease)

    def pack(self, rows: Sequence[Tensor], hplms: Sequence[ReadyHplm], isolated: bool = False) -> PackedRows:
        """Copy rows to the device, and choose the adapters' tensors that they need.

        Adapters that are loaded later, and make pools grow, do not change the tensors of this batch.

        Args:
            rows: Hidden states, `[L_i, H]` each.
            hplms: The pinned hPLM of each row.
            isolated: Use the layout in which a row of NaN or infinity spoils no other; it costs more.
        """
        with self.copies.copying():
            slots = [self.slots.check(hplm.lease) for hplm in hplms]
            adapters_of = partial(self._adapters_of, self.slots.bank)
            layout = self._isolated if isolated else self._layout
            return pack_rows(rows, slots, layout, adapters_of, self._dtype, self._device)

    def run(
        self,
        packed: PackedRows,
        hplms: Sequence[ReadyHplm],
        middles: Sequence[int | None] | None = None,
        exits: Sequence[Exit | None] | None = None,
        on_early: OnEarly = lambda _: None,
    ) -> list[Tensor]:
        """Compute the logits of each row, in fp32 on the CPU, in the order of `pack`.

        Args:
            packed: What `pack` has returned.
            hplms: The pinned hPLM of each row.
            middles: First token of each pair's second segment; by default all rows are single texts.
            exits: Where each row may leave; by default none does. Of one that does, the logits are those of its exit.
            on_early: Takes what is known of the rows at their exits.
        """
        nothing = [None] * len(hplms)
        columns = zip(range(len(hplms)), hplms, middles or nothing, exits or nothing, strict=True)
        rows = [_Row(*column) for column in columns]
        results: dict[int, Tensor] = {}

        def run(batch: MicroBatch) -> dict[int, Tensor]:
            return self._run(batch, [rows[index] for index in batch.grid.order], on_early)

        for of_share in self._compute_pool.run(run, packed.micro_batches):
            results |= of_share
        return [results[index] for index in range(len(results))]

    @torch.inference_mode()
    def _run(self, batch: MicroBatch, rows: list[_Row], on_early: OnEarly) -> dict[int, Tensor]:
        """Compute the logits of a micro-batch's rows, given in the order of its grid, by their indices."""
        for row in rows:
            self.slots.check(row.hplm.lease)
        num_layers, left = self._geometry.num_upper_layers, dict[int, Tensor]()
        first, hidden = 0, batch.hidden
        attend = self._attention(batch)
        for last in cuts_of((row.exit for row in rows), num_layers):
            hidden = self._layers(hidden, attend, batch.adapters, range(first, last))
            first, num_left = last, len(left)
            judged = [position for position, row in enumerate(rows) if _may_leave(row, last) and row.index not in left]
            left |= self._judge(batch, hidden, rows, judged, on_early)
            stay = [position for position, row in enumerate(rows) if row.index not in left]
            if not stay:
                return left
            if len(left) > num_left and _pays(batch, stay, 1 - last / num_layers):
                rows = [rows[position] for position in stay]
                batch = batch.narrowed(hidden, stay, [row.hplm.lease.slot for row in rows])
                hidden, attend = batch.hidden, self._attention(batch)
        states = self._layers(hidden, attend, batch.adapters, range(first, num_layers))
        stay = [position for position, row in enumerate(rows) if row.index not in left]
        heads = [_head_row(batch, position, rows[position], rows[position].hplm.head) for position in stay]
        found = _on_cpu(logits(states, heads))
        return left | dict(zip([rows[position].index for position in stay], found, strict=True))

    def _judge(
        self, batch: MicroBatch, states: Tensor, rows: Sequence[_Row], positions: Sequence[int], on_early: OnEarly
    ) -> dict[int, Tensor]:
        """Answer rows at their exits, tell it, and return the logits of those that leave, by their indices."""
        at_exit = [(rows[position].index, each) for position in positions if (each := rows[position].exit) is not None]
        exits = [each for _, each in at_exit]
        heads = [_head_row(batch, at, rows[at], each.head) for at, each in zip(positions, exits, strict=True)]
        outputs = _on_cpu(logits(states, heads))
        found = [
            (index, Early(output, confidence, each.lets_go(confidence)))
            for (index, each), output, confidence in zip(at_exit, outputs, confidences(outputs, exits), strict=True)
        ]
        if found:
            on_early(found)
        return {index: early.logits for index, early in found if early.leaves}

    def _attention(self, batch: MicroBatch) -> Attend:
        return attention(batch.grid, self._geometry.num_heads, self._dtype, self._device)

    def _own_ladder(self, ladder: Ladder | None) -> Ladder | None:
        if ladder is None:
            return None
        return replace(ladder, early=replace(ladder.early, head=ladder.early.head.map(self._own)))

    def _own(self, _: str, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device, even if it is fp32 already: a view would keep its file mapped."""
        return tensor.to(device=self._device, dtype=torch.float32, copy=True)


def _may_leave(row: _Row, after: int) -> bool:
    return row.exit is not None and row.exit.after == after


def _pays(batch: MicroBatch, stay: Sequence[int], remaining: float) -> bool:
    """Whether the rows that stay are to be laid out anew for this share of the layers."""
    leaving = 1 - sum(batch.grid.lengths[position] for position in stay) / batch.grid.num_tokens
    return batch.may_narrow and leaving * remaining >= LEAST_TO_NARROW


def _head_row(batch: MicroBatch, position: int, row: _Row, head: Head) -> HeadRow:
    start = batch.grid.starts[position]
    return HeadRow(start, start + batch.grid.lengths[position], head, row.hplm.pooling, row.middle)


def _on_cpu(results: list[Tensor]) -> list[Tensor]:
    """Copy all results to the CPU at once."""
    if not results or results[0].device.type == "cpu":
        return results
    sizes = [result.numel() for result in results]
    flat = torch.split(torch.cat([result.flatten() for result in results]).cpu(), sizes)
    return [one.view(result.shape) for one, result in zip(flat, results, strict=True)]
