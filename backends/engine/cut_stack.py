"""The upper layers of a root, cut in stages: an `UpperStack` whose layers and adapters lie in several places.

Exits and heads need not know of it: layers are called by their numbers, and which stage computes them is for
`CutLayers`. An early head lies on the device of the layer after which it answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from backends.adapters.cut_bank import CutBank, cut_adapters
from backends.adapters.device_bank import AdapterBank
from backends.adapters.ladder import Ladder
from backends.adapters.product import SegmentedAdapters
from backends.device_errors import DeviceLostError, require_device
from backends.engine.cut_layers import CutLayers, attention_by_device
from backends.engine.layers import ServedLayers, served_layers
from backends.engine.layouts import attention
from backends.engine.packing import MicroBatch
from backends.engine.pipeline import Pipeline
from backends.engine.stack import StackSettings, UpperStack
from backends.engine.streams import Mark
from backends.root.encoder import Attend
from backends.root.int8_file import Smoothing
from backends.root.store import RootFolder
from backends.root.upper import UpperLayers


class CutUpperStack(UpperStack):
    """The upper layers of a root, in as many stages as the pipeline has.

    Args:
        root: Root of the layers.
        settings: Precision and limits; the devices are the pipeline's.
        pipeline: The stages, which stacks of other roots use as well.
        spans: The layers of each stage.
    """

    def __init__(self, root: RootFolder, settings: StackSettings, pipeline: Pipeline, spans: Sequence[range]) -> None:
        self._pipeline = pipeline
        self._devices = [place.device for place in pipeline.places]
        self._spans = spans
        super().__init__(root, settings, pipeline, cut_adapters(SegmentedAdapters, self._spans))

    def _served(self, upper: UpperLayers, smoothing: Smoothing | None) -> ServedLayers:
        activation, precision = self._geometry.activation, self.precision
        of_stages = [
            served_layers(upper.part(span), activation, precision, device, smoothing)
            for span, device in zip(self._spans, self._devices, strict=True)
        ]
        return CutLayers(of_stages, self._spans, self._pipeline)

    def _bank(self, settings: StackSettings) -> AdapterBank:
        limits = settings.num_slots, self._geometry, settings.max_width, self._dtype
        return CutBank(*limits, self._devices, self._spans)

    def attention(self, batch: MicroBatch) -> Attend:
        if len(set(self._devices)) == 1:
            return super().attention(batch)
        heads, dtype = self._geometry.heads, self._dtype
        attend = attention_by_device(
            [(device, attention(batch.grid, *heads, dtype, device)) for device in set(self._devices)]
        )

        def attend_and_beat(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._pipeline.beat()
            return attend(layer, queries, keys, values)

        return attend_and_beat

    @contextmanager
    def computing(self, mark: Mark) -> Iterator[None]:
        try:
            with super().computing(mark):
                yield
        except DeviceLostError:
            raise
        except Exception:
            for device in self._devices:
                require_device(device)
            raise

    def own(self, _: str, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._devices[-1], dtype=torch.float32, copy=True)

    def _own_ladder(self, ladder: Ladder | None) -> Ladder | None:
        own = super()._own_ladder(ladder)
        if own is None:
            return None
        device = self._device_after(own.early.after)
        return replace(own, early=replace(own.early, head=own.early.head.map(lambda _, tensor: tensor.to(device))))

    def _device_after(self, num_layers: int) -> torch.device:
        """Return the device of the last of so many layers."""
        return next(device for device, span in self._devices_and_spans() if num_layers <= span.stop)

    def _devices_and_spans(self) -> Sequence[tuple[torch.device, range]]:
        return list(zip(self._devices, self._spans, strict=True))
