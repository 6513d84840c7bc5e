"""The adapters of layers that are cut in stages: each stage's device holds the parts of its own layers, and no others.

One slot number stands for an hPLM in all stages, so a lease spans them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backends.adapters.adapter_set import ENTRANCE, AdapterSet, require_part_fits
from backends.adapters.device_bank import AdapterBank
from backends.adapters.parts import Part
from backends.adapters.product import BatchAdapters, BatchLayer
from backends.adapters.segments import Segment
from backends.root.geometry import RootGeometry


class CutBank(AdapterBank):
    """The slots of all stages; `of_stages` hold the parts, and the pools of this bank itself stay empty.

    Args:
        num_slots: Of each stage.
        geometry: Sizes of the whole stack.
        max_width: Largest width of a part.
        dtype: What adapters compute in.
        devices: One for each stage.
        spans: The layers of each stage, which follow one another.
    """

    def __init__(
        self,
        num_slots: int,
        geometry: RootGeometry,
        max_width: int,
        dtype: torch.dtype,
        devices: Sequence[torch.device],
        spans: Sequence[range],
    ) -> None:
        super().__init__(num_slots, geometry, max_width, dtype, devices[0])
        self._whole = geometry
        self._spans = spans
        self.of_stages = [
            AdapterBank(num_slots, replace(geometry, num_upper_layers=len(span)), max_width, dtype, device)
            for device, span in zip(devices, spans, strict=True)
        ]

    @property
    def size_bytes(self) -> int:
        return sum(bank.size_bytes for bank in self.of_stages)

    def held(self, slot: int) -> AdapterSet:
        """Return a slot's adapters, put together from copies on the first device."""
        held = [bank.held(slot).parts() for bank in self.of_stages]
        return AdapterSet.from_parts({key: _joined([parts[key] for parts in held if key in parts]) for key in held[0]})

    def make_room(self, adapters: AdapterSet) -> None:
        for key, part in adapters.parts().items():
            require_part_fits(key, part, self._whole)
        for bank, of_stage in zip(self.of_stages, self._cut(adapters), strict=True):
            bank.make_room(of_stage)

    def fill(self, slot: int, adapters: AdapterSet) -> None:
        for bank, of_stage in zip(self.of_stages, self._cut(adapters), strict=True):
            bank.fill(slot, of_stage)

    def empty(self, slot: int) -> None:
        for bank in self.of_stages:
            bank.empty(slot)

    def _cut(self, adapters: AdapterSet) -> list[AdapterSet]:
        """Return what each stage has of a set; the entrance is in front of the first layer."""
        return [
            AdapterSet.from_parts(
                {
                    key: part if key == ENTRANCE else _layers_of(part, span)
                    for key, part in adapters.parts().items()
                    if key != ENTRANCE or 0 in span
                }
            )
            for span in self._spans
        ]


@dataclass(frozen=True)
class CutAdapters:
    """The adapters of a batch's segments in all stages, by the number that a layer has in the whole stack."""

    of_stages: Sequence[BatchAdapters]
    spans: Sequence[range]

    def enter(self, hidden: Tensor) -> Tensor:
        return self.of_stages[0].enter(hidden)

    def layer(self, index: int) -> BatchLayer:
        stage = next(number for number, span in enumerate(self.spans) if index in span)
        return self.of_stages[stage].layer(index - self.spans[stage].start)

    def narrowed(self, segments: Sequence[Segment]) -> CutAdapters:
        return replace(self, of_stages=[adapters.narrowed(segments) for adapters in self.of_stages])


def cut_adapters(
    adapters_of: Callable[[AdapterBank, Sequence[Segment]], BatchAdapters], spans: Sequence[range]
) -> Callable[[AdapterBank, Sequence[Segment]], BatchAdapters]:
    """Let a computation of a bank's adapters compute those of a `CutBank`, stage by stage."""

    def of_cut_bank(bank: AdapterBank, segments: Sequence[Segment]) -> BatchAdapters:
        if not isinstance(bank, CutBank):
            return adapters_of(bank, segments)
        return CutAdapters([adapters_of(each, segments) for each in bank.of_stages], spans)

    return of_cut_bank


def _layers_of(part: Part, span: range) -> Part:
    cut: Part = part.map(lambda _, tensor: tensor[span.start : span.stop])
    return cut


def _joined(parts: Sequence[Part]) -> Part:
    named = [part.named() for part in parts]
    device = next(iter(named[0].values())).device
    joined: Part = parts[0].map(lambda name, _: torch.cat([tensors[name].to(device) for tensors in named]))
    return joined
