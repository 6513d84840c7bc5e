"""Random layers and adapters of every kind: layers that a stack runs, against the plain ones in fp32."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from adapter_reference import KINDS, random_adapters
from backends.adapters.adapter_set import AdapterSet
from backends.adapters.device_bank import AdapterBank
from backends.adapters.product import SegmentedAdapters
from backends.adapters.segments import Segment
from backends.engine.layers import ServedLayers
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers


def random_upper(geometry: RootGeometry) -> UpperLayers:
    """No bias is zero and no norm the identity, so that each left out or taken twice shows."""
    upper = UpperLayers(geometry).eval().requires_grad_(False)
    for parameter in upper.parameters():
        parameter.copy_(0.3 * torch.randn_like(parameter))
    for norm in upper.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.weight.add_(1.0)
    return upper


def gated(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """In place of attention, so that segments may be computed one by one."""
    return torch.tanh(query) + key * 0.5 + value


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected).norm() / expected.norm())


class LayerCases:
    """Layers, and a bank that holds adapters of each kind and none in slot 0."""

    def __init__(self, geometry: RootGeometry, dtype: torch.dtype) -> None:
        self.seed = random.randrange(1 << 32)
        torch.manual_seed(self.seed)
        self._rng = random.Random(self.seed)
        self._plain = random_upper(geometry)
        self._hidden_size, self._dtype = geometry.hidden_size, dtype
        self._held = [AdapterSet(), *(random_adapters(self._rng, geometry, kind) for kind in KINDS)]
        self._bank = AdapterBank(len(self._held), geometry, 32, dtype, torch.device("cpu"))
        for slot, adapters in enumerate(self._held[1:], start=1):
            self._bank.make_room(adapters)
            self._bank.fill(slot, adapters)

    def upper(self) -> UpperLayers:
        """Return a copy of the layers, which may be converted."""
        return copy.deepcopy(self._plain)

    def errors(self, layers: ServedLayers, mixed: bool) -> Iterator[tuple[str, float]]:
        """Yield the relative error of each batch, and its name; alone, each kind of adapters has its own batch."""
        slots_in_all = range(len(self._held))
        for slots in [list(slots_in_all)] if mixed else [[slot] for slot in slots_in_all]:
            ends = list(accumulate(self._rng.randint(1, 60) for _ in slots))
            bounds = zip(slots, pairwise([0, *ends]), strict=True)
            segments = [Segment(slot, start, end) for slot, (start, end) in bounds]
            hidden = torch.randn(ends[-1], self._hidden_size).to(self._dtype)
            with torch.inference_mode():
                got = layers(hidden, gated, SegmentedAdapters(self._bank, segments))
                parts = [self._plain(hidden[one.tokens].float(), gated, self._held[one.slot]) for one in segments]
            yield f"seed {self.seed}, slots {slots}", relative_error(got, torch.cat(parts))
