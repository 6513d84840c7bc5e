"""Shared layers on the device, with the slots of the hPLMs that run on them: what all stacks of an encoder have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backends.adapters.device_bank import AdapterBank
from backends.adapters.parts import MAX_WIDTH
from backends.adapters.product import BatchAdapters, SegmentedAdapters
from backends.adapters.segments import Segment
from backends.adapters.slots import SlotLease, SlotTable
from backends.device_errors import require_device
from backends.engine.compute_pool import ComputePool
from backends.engine.defaults import DTYPE, LAYOUT, NUM_SLOTS
from backends.engine.layers import ServedLayers, served_layers
from backends.engine.layouts import LAYOUTS, Isolated, MakeLayout, attention, require_layout
from backends.engine.packing import MicroBatch, PackedRows, pack_rows
from backends.engine.precision import DTYPES, Precision
from backends.engine.streams import CopyStream, Mark
from backends.errors import InvalidArgumentError
from backends.root.encoder import Attend
from backends.root.geometry import RootGeometry
from backends.root.int8_file import Smoothing
from backends.root.upper import UpperLayers

AdaptersOf = Callable[[AdapterBank, Sequence[Segment]], BatchAdapters]
LEAST_TO_NARROW = 0.04
"""Share of a batch's layers, over all tokens, that must be saved for the others to be laid out anew."""


@dataclass(frozen=True)
class StackSettings:
    """Device, precision and limits of a stack.

    Attributes:
        dtype: What the layers compute in, one of `DTYPES`; with `int8` and `fp8`, the shared layers' products.
        num_slots: Number of adapter slots, with the identity's.
        max_width: Largest width of an hPLM's adapter part.
        layout: Layout of a batch's rows. `ragged` has no padding and is the fastest (`bench.ragged`); `slotted` suits
            the policy `slotted-das`.
        stages: Parts that the layers are cut into, each computed on its share of the cores or on a device of its own.
        stage: The only one that is computed in this process, where each stage is a Triton model; None for all of them.
        device_memory: Bytes that weights and adapters of all stacks may take in one stage; None for no limit.
    """

    device: str = "cpu"
    dtype: str = DTYPE
    num_slots: int = NUM_SLOTS
    max_width: int = MAX_WIDTH
    layout: str = LAYOUT
    stages: int = 1
    stage: int | None = None
    device_memory: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        require_layout(self.layout)
        if not 1 <= self.max_width <= MAX_WIDTH:
            raise InvalidArgumentError(f"max_width is {self.max_width}; it can be 1 to {MAX_WIDTH}")
        if self.stages < 1:
            raise InvalidArgumentError(f"layers are cut into 1 stage or more, not {self.stages}")
        if self.stage is not None and not 0 <= self.stage < self.stages:
            raise InvalidArgumentError(f"there is no stage {self.stage} of {self.stages}")
        if self.device_memory is not None and self.device_memory < 1:
            raise InvalidArgumentError(f"a device has no memory of {self.device_memory} bytes")

    @property
    def is_later_stage(self) -> bool:
        """Whether rows come from a stage in another process."""
        return bool(self.stage)

    @property
    def next_stage(self) -> int | None:
        """The stage in another process that rows go on to."""
        return None if self.stage in (None, self.stages - 1) else self.stage + 1


class SlottedLayers:
    """Layers that rows of leased hPLMs pass; what becomes of their states is for each kind of stack.

    Args:
        upper: The layers, in fp32; they are converted.
        geometry: Their sizes.
        settings: Limits.
        precision: What they compute in.
        compute_pool: Threads that compute; by default a pool of its own, with PyTorch's number of threads.
        adapters_of: Computes the adapters of a batch's segments; a bench compares others with the default.
        layout_of: Makes the layout; by default the one that the settings name. A bench compares layouts of its own.
        smoothing: Of int8.
    """

    def __init__(
        self,
        upper: UpperLayers,
        geometry: RootGeometry,
        settings: StackSettings,
        precision: Precision,
        compute_pool: ComputePool | None = None,
        adapters_of: AdaptersOf = SegmentedAdapters,
        layout_of: MakeLayout | None = None,
        smoothing: Smoothing | None = None,
    ) -> None:
        self._device = torch.device(settings.device)
        self.precision = precision
        self._dtype = precision.states
        self._geometry = geometry
        self._adapters_of = adapters_of
        self._layers = self._served(upper, smoothing)
        self._compute_pool = (
            ComputePool(torch.get_num_threads(), self._device) if compute_pool is None else compute_pool
        )
        sharing = self._compute_pool.sharing_for(geometry.hidden_size)
        self._layout = (layout_of or LAYOUTS[settings.layout])(sharing)
        self._isolated = Isolated(sharing)
        self.slots = SlotTable(self._bank(settings))
        self.copies = CopyStream(self._device)

    def _served(self, upper: UpperLayers, smoothing: Smoothing | None) -> ServedLayers:
        return served_layers(upper, self._geometry.activation, self.precision, self._device, smoothing)

    def _bank(self, settings: StackSettings) -> AdapterBank:
        return AdapterBank(settings.num_slots, self._geometry, settings.max_width, self._dtype, self._device)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def num_layers(self) -> int:
        return self._geometry.num_upper_layers

    @property
    def hidden_size(self) -> int:
        """Width of the rows that it takes."""
        return self._geometry.hidden_size

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        """Raise `InvalidArgumentError` for a row that could not run, before it joins others in a batch."""
        if hidden_size != self.hidden_size:
            raise InvalidArgumentError(f"hidden rows are {hidden_size} wide, not {self.hidden_size}")
        if not 1 <= num_tokens <= self._geometry.max_tokens:
            raise InvalidArgumentError(f"a row has {num_tokens} tokens, not 1 to {self._geometry.max_tokens}")

    def pack_leased(self, rows: Sequence[Tensor], leases: Sequence[SlotLease], isolated: bool = False) -> PackedRows:
        """Copy rows to the device, and choose the adapters' tensors that they need.

        Adapters that are loaded later, and make pools grow, do not change the tensors of this batch.

        Args:
            rows: Hidden states, `[L_i, H]` each.
            leases: The pinned slot of each row's hPLM.
            isolated: Use the layout in which a row of NaN or infinity spoils no other; it costs more.
        """
        with self.copies.copying():
            slots = [self.slots.check(lease) for lease in leases]
            adapters_of = partial(self._adapters_of, self.slots.bank)
            layout = self._isolated if isolated else self._layout
            return pack_rows(rows, slots, layout, adapters_of, self._dtype, self._device)

    @contextmanager
    def computing(self, mark: Mark) -> Iterator[None]:
        """Compute what was copied up to a mark.

        Raises:
            DeviceLostError: An error was the device's, and nothing can be computed in this process any more.
        """
        self.copies.wait(mark)
        try:
            yield
        except Exception:
            require_device(self.device)
            # Kernels may still run, and read memory that the next copies are given.
            self.copies.wait_for_computing()
            raise

    def attention(self, batch: MicroBatch) -> Attend:
        attend = attention(batch.grid, *self._geometry.heads, self._dtype, self._device)

        def attend_and_beat(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._compute_pool.beat()
            return attend(layer, queries, keys, values)

        return attend_and_beat

    @torch.inference_mode()
    def pass_layers(self, batch: MicroBatch, hidden: Tensor, span: range) -> Tensor:
        """Compute some of the layers by themselves."""
        return self._layers(hidden, self.attention(batch), batch.adapters, span)

    def own(self, _: str, tensor: Tensor) -> Tensor:
        """Copy a head's tensor to the device, even if it is fp32 already: a view would keep its file mapped."""
        return tensor.to(device=self._device, dtype=torch.float32, copy=True)


def pays(batch: MicroBatch, stay: Sequence[int], remaining: float) -> bool:
    """Whether the rows that stay, by their positions, are to be laid out anew for this share of the layers."""
    leaving = 1 - sum(batch.grid.lengths[position] for position in stay) / batch.grid.num_tokens
    return batch.may_narrow and leaving * remaining >= LEAST_TO_NARROW


def on_cpu(results: list[Tensor]) -> list[Tensor]:
    """Copy all results to the CPU at once."""
    if not results or results[0].device.type == "cpu":
        return results
    sizes = [result.numel() for result in results]
    flat = torch.split(torch.cat([result.flatten() for result in results]).cpu(), sizes)
    return [one.view(result.shape) for one, result in zip(flat, results, strict=True)]
