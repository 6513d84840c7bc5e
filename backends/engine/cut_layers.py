"""Layers that are cut in stages, as one run of layers: states pass each stage on its own threads and device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backends.adapters.product import BatchAdapters, BatchLayer
from backends.adapters.segments import Segment
from backends.engine.layers import ServedLayers
from backends.engine.pipeline import Pipeline
from backends.root.encoder import Attend


class CutLayers:
    """The layers of all stages, by the numbers that they have in the whole stack.

    Args:
        of_stages: The layers of each stage.
        spans: Their numbers.
        pipeline: The stages.
    """

    def __init__(self, of_stages: Sequence[ServedLayers], spans: Sequence[range], pipeline: Pipeline) -> None:
        self._of_stages = of_stages
        self._spans = spans
        self._pipeline = pipeline

    def __call__(
        self, hidden: Tensor, attend: Attend, adapters: BatchAdapters, span: Sequence[int] | None = None
    ) -> Tensor:
        for stage, numbers in self._parts(range(self._spans[-1].stop) if span is None else span):
            hidden = self._pipeline.compute(stage, partial(self._pass, stage, hidden, attend, adapters, numbers))
        return hidden

    def _parts(self, span: Sequence[int]) -> Iterator[tuple[int, range]]:
        """Yield what each stage has of a span, which is without gaps, by the numbers that layers have in the stage."""
        for stage, own in enumerate(self._spans):
            numbers = [number - own.start for number in span if number in own]
            if numbers:
                yield stage, range(numbers[0], numbers[-1] + 1)

    def _pass(
        self, stage: int, hidden: Tensor, attend: Attend, adapters: BatchAdapters, numbers: Sequence[int]
    ) -> Tensor:
        own = _OfStage(adapters, self._spans[stage].start)
        moved = hidden.to(self._pipeline.places[stage].device)
        return self._of_stages[stage](moved, attend, own, numbers)


@dataclass(frozen=True)
class _OfStage:
    """A batch's adapters by the numbers that layers have in a stage."""

    whole: BatchAdapters
    first: int

    def enter(self, hidden: Tensor) -> Tensor:
        return hidden if self.first else self.whole.enter(hidden)

    def layer(self, index: int) -> BatchLayer:
        return self.whole.layer(self.first + index)

    def narrowed(self, segments: Sequence[Segment]) -> BatchAdapters:
        return _OfStage(self.whole.narrowed(segments), self.first)


def attention_by_device(attend_on: Sequence[tuple[torch.device, Attend]]) -> Attend:
    """Attend on the device on which the states are."""
    by_device = dict(attend_on)

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return by_device[queries.device](layer, queries, keys, values)

    return attend
