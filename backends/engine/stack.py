"""One root's shared upper layers on the device, with the slots and heads of the hPLMs that run on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.ladder import Ladder
from backends.adapters.product import SegmentedAdapters
from backends.adapters.slots import SlotLease
from backends.engine.compute_pool import ComputePool
from backends.engine.exits import Early, Exit, confidences, cuts_of
from backends.engine.heads import HeadRow, logits
from backends.engine.layouts import MakeLayout
from backends.engine.packing import MicroBatch, PackedRows
from backends.engine.precision import precision_of, smoothing_of
from backends.engine.pruning import Bools, ReceivedAttention, RowAtExit, kept_tokens
from backends.engine.slotted_layers import AdaptersOf, SlottedLayers, StackSettings, on_cpu, pays
from backends.root.int8_file import Smoothing
from backends.root.store import RootFolder

__all__ = ["ReadyHplm", "StackSettings", "UpperStack"]


class ReadyHplm(NamedTuple):
    """An hPLM whose adapters are pinned in a slot."""

    lease: SlotLease
    head: Head
    pooling: str
    ladder: Ladder | None = None


OnEarly = Callable[[Sequence[tuple[int, Early]]], None]
"""Takes what is known of rows at their exits, each with its index, from any compute thread."""
Words = dict[int, Bools]
"""Which of its tokens a row keeps, by its position."""


@dataclass(frozen=True)
class _Row:
    """A row on its way through the layers; `index` is its place in the order of `pack`."""

    index: int
    hplm: ReadyHplm
    middle: int | None
    exit: Exit | None

    def past_exit(self, words: Bools | None) -> _Row:
        """Return the row behind its exit, where it has kept these of its tokens, or all."""
        first = self.middle if self.middle is None or words is None else int(words[: self.middle].sum())
        return self if self.exit is None else _Row(self.index, self.hplm, first, self.exit.later)


class UpperStack(SlottedLayers):
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
        adapters_of: AdaptersOf = SegmentedAdapters,
        layout_of: MakeLayout | None = None,
        smoothing: Smoothing | None = None,
    ) -> None:
        precision = precision_of(settings.dtype, torch.device(settings.device))
        if smoothing is None and precision.products == "int8":
            smoothing = smoothing_of(root)
        layers = root.upper(), root.geometry
        super().__init__(*layers, settings, precision, compute_pool, adapters_of, layout_of, smoothing)
        self.fingerprint = root.fingerprint
        self._heads: dict[int, tuple[Head, str, Ladder | None]] = {}
        """Heads by slot, each with its pooling, and the ladder where there is one."""

    def ready(self, key: int, load: Callable[[], HplmArtifact]) -> ReadyHplm:
        """Pin the hPLM version `key`; `load` is called only if it is not resident."""
        loaded: list[tuple[Head, str, Ladder | None]] = []

        def load_adapters() -> AdapterSet:
            artifact = load()
            loaded.append((artifact.head.map(self.own), artifact.pooling, self._own_ladder(artifact.ladder)))
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
        return self.pack_leased(rows, [hplm.lease for hplm in hplms], isolated)

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
        attend = self.attention(batch)
        for last in cuts_of((row.exit for row in rows), num_layers):
            received = self._received_attention(batch, rows, last)
            noting = attend if received is None else received.noting(attend)
            hidden = self._layers(hidden, noting, batch.adapters, range(first, last))
            first, num_left = last, len(left)
            judged = [position for position, row in enumerate(rows) if _may_leave(row, last) and row.index not in left]
            of_exits, words = self._judge(batch, hidden, rows, judged, received, on_early)
            del received, noting  # what they hold is as large as the batch
            left |= of_exits
            for position in judged:
                rows[position] = rows[position].past_exit(words.get(position))
            stay = [position for position, row in enumerate(rows) if row.index not in left]
            if not stay:
                return left
            if words or (len(left) > num_left and pays(batch, stay, 1 - last / num_layers)):
                rows = [rows[position] for position in stay]
                batch = batch.narrowed(hidden, stay, [row.hplm.lease.slot for row in rows], words)
                hidden, attend = batch.hidden, self.attention(batch)
        states = self._layers(hidden, attend, batch.adapters, range(first, num_layers))
        stay = [position for position, row in enumerate(rows) if row.index not in left]
        heads = [_head_row(batch, position, rows[position], rows[position].hplm.head) for position in stay]
        found = self._results(states, heads)
        return left | dict(zip([rows[position].index for position in stay], found, strict=True))

    def _received_attention(self, batch: MicroBatch, rows: Sequence[_Row], last: int) -> ReceivedAttention | None:
        """Return what notes the attention below an exit, if rows may lose words there."""
        exits = [row.exit for row in rows if row.exit is not None and row.exit.after == last]
        may_lose = batch.may_narrow and any(each.prunable is not None for each in exits)
        return ReceivedAttention(last - 1, self._geometry.num_heads) if may_lose else None

    def _judge(
        self,
        batch: MicroBatch,
        states: Tensor,
        rows: Sequence[_Row],
        positions: Sequence[int],
        received: ReceivedAttention | None,
        on_early: OnEarly,
    ) -> tuple[dict[int, Tensor], Words]:
        """Answer rows at their exits, and tell it.

        Args:
            batch: The micro-batch.
            states: Behind the layers below the exits.
            rows: All rows.
            positions: Those that are answered here.
            received: The attention below the exits, if rows may lose words here.
            on_early: See `run`.

        Returns:
            The logits of the rows that leave, by their indices, and the tokens that others keep which lose words.
        """
        at_exit = [(position, each) for position in positions if (each := rows[position].exit) is not None]
        exits = [each for _, each in at_exit]
        heads = [_head_row(batch, position, rows[position], each.head) for position, each in at_exit]
        outputs = on_cpu(logits(states, heads))
        sure = confidences(outputs, exits)
        words: Words = {}
        if received is not None:
            lost = [each.lost_words(confidence) for each, confidence in zip(exits, sure, strict=True)]
            columns = zip([position for position, _ in at_exit], heads, lost, strict=True)
            pruned = {at: RowAtExit(head, received.of(head), each) for at, head, each in columns if each is not None}
            words = dict(zip(pruned, kept_tokens([*pruned.values()]), strict=True)) if pruned else {}
        found = [
            (rows[position].index, _early(output, confidence, each, words.get(position)))
            for (position, each), output, confidence in zip(at_exit, outputs, sure, strict=True)
        ]
        if found:
            on_early(found)
        return {index: early.logits for index, early in found if early.leaves}, words

    def _results(self, states: Tensor, heads: Sequence[HeadRow]) -> list[Tensor]:
        """Return what becomes of rows behind the last layer, in fp32 on the CPU: the logits by their heads."""
        return on_cpu(logits(states, heads))

    def _own_ladder(self, ladder: Ladder | None) -> Ladder | None:
        if ladder is None:
            return None
        return replace(ladder, early=replace(ladder.early, head=ladder.early.head.map(self.own)))


def _early(logits: Tensor, confidence: float, leaving: Exit, words: Bools | None) -> Early:
    leaves = leaving.lets_go(confidence) and not leaving.is_compared
    return Early(logits, confidence, leaves, None if words is None else float(words.mean()))


def _may_leave(row: _Row, after: int) -> bool:
    return row.exit is not None and row.exit.after == after


def _head_row(batch: MicroBatch, position: int, row: _Row, head: Head) -> HeadRow:
    start = batch.grid.starts[position]
    return HeadRow(start, start + batch.grid.lengths[position], head, row.hplm.pooling, row.middle)
