"""One root's shared upper half on the device, with the slots and heads of the hPLMs that run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.adapters.bottleneck import MAX_BOTTLENECK, Head
from backends.adapters.product import layer_adapters
from backends.adapters.slots import SlotBank, SlotLease, SlotTable
from backends.engine.heads import logits
from backends.engine.packing import PackedRows, pack_rows, packed_attention
from backends.errors import InvalidArgumentError
from backends.root.store import RootFolder

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class StackSettings:
    """Where and how a stack computes; `num_slots` includes the identity."""

    device: str = "cpu"
    dtype: str = "bf16"
    num_slots: int = 65
    max_bottleneck: int = MAX_BOTTLENECK

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class ReadyHplm:
    """An hPLM whose adapter is pinned in a slot."""

    lease: SlotLease
    head: Head
    pooling: str


class UpperStack:
    """Loads once; then `ready` pins an hPLM, `run` computes rows of any mix of pinned ones, `release` lets go."""

    def __init__(self, root: RootFolder, settings: StackSettings) -> None:
        geometry, self._device = root.geometry, torch.device(settings.device)
        self._dtype = DTYPES[settings.dtype]
        self._geometry = geometry
        self._upper = root.upper().to(device=self._device, dtype=self._dtype)
        self.fingerprint = root.fingerprint
        self.slots = SlotTable(
            SlotBank.zeros(
                settings.num_slots,
                geometry.num_upper_layers,
                settings.max_bottleneck,
                geometry.hidden_size,
                self._dtype,
                self._device,
            )
        )
        self._heads: dict[int, tuple[Head, str]] = {}

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        """Refuse a row that could not run, before it meets others in a batch."""
        if hidden_size != self._geometry.hidden_size:
            raise InvalidArgumentError(f"hidden rows are {hidden_size} wide, not {self._geometry.hidden_size}")
        if not 1 <= num_tokens <= self._geometry.max_tokens:
            raise InvalidArgumentError(f"a row has {num_tokens} tokens, not 1 to {self._geometry.max_tokens}")

    def ready(self, key: int, load: Callable[[], HplmArtifact]) -> ReadyHplm:
        """Pin the hPLM version `key`; `load` is called only if it is not resident."""

        def load_adapter_and_head() -> HplmArtifact:
            artifact = load()
            self._heads[key] = (self._on_device(artifact.head), artifact.pooling)
            return artifact

        lease = self.slots.acquire(key, lambda: load_adapter_and_head().adapter)
        self._forget_evicted_heads()
        head, pooling = self._heads[key]
        return ReadyHplm(lease, head, pooling)

    def release(self, hplm: ReadyHplm) -> None:
        self.slots.release(hplm.lease)

    def pack(self, rows: Sequence[Tensor], hplms: Sequence[ReadyHplm]) -> PackedRows:
        """Copy rows to the device, packed in the order of their slots."""
        on_device = [row.to(device=self._device, dtype=self._dtype) for row in rows]
        return pack_rows(on_device, [self.slots.check(hplm.lease) for hplm in hplms])

    @torch.inference_mode()
    def run(self, packed: PackedRows, hplms: Sequence[ReadyHplm]) -> list[Tensor]:
        """The logits of each row, in the order in which the rows were handed to `pack`."""
        attend = packed_attention(self._geometry.num_heads, packed.length_groups)
        adapters = layer_adapters(self.slots.bank, self._geometry.num_upper_layers, packed.segments)
        states = self._upper(packed.hidden, attend, adapters)
        results: dict[int, Tensor] = {}
        for place, index in enumerate(packed.order):
            hplm = hplms[index]
            self.slots.check(hplm.lease)
            row = states[packed.offsets[place] : packed.offsets[place + 1]]
            results[index] = logits(row, hplm.head, hplm.pooling).cpu()
        return [results[index] for index in range(len(results))]

    def _on_device(self, head: Head) -> Head:
        return Head(head.weight.to(self._device, torch.float32), head.bias.to(self._device, torch.float32))

    def _forget_evicted_heads(self) -> None:
        if len(self._heads) > self.slots.capacity:
            resident = set(self.slots.resident())
            self._heads = {key: head for key, head in self._heads.items() if key in resident}
