"""What serving makes of summed vectors, against the module that roots are trained with."""

from __future__ import annotations

import random

import torch

from backends.home import Home
from backends.lower import model
from backends.lower.model import RootFront
from backends.root.lower import Aggregation
from backends.root.store import RootFolder


class RandomlyPlaced(RootFolder):
    """A root of which no position and no type is worth nothing."""

    def aggregation(self) -> Aggregation:
        aggregation = super().aggregation()
        for parameter in aggregation.parameters():
            parameter.copy_(torch.randn_like(parameter))
        self.placed = aggregation
        return aggregation


def test_every_type_at_every_position_is_placed_as_in_training(built_home: Home) -> None:
    """Over more tokens than go together."""
    seed = random.randrange(1 << 32)
    torch.manual_seed(seed)
    root = RandomlyPlaced(built_home.root("tiny"))
    front, geometry = RootFront(root), root.geometry
    count = 3 * model._CHUNK_TOKENS + 7
    summed = torch.randn(count, geometry.hidden_size)
    positions = torch.randint(geometry.max_tokens, (count,))
    types = torch.randint(geometry.type_vocab_size, (count,))
    with torch.inference_mode():
        got, expected = front.hidden(summed, positions, types), root.placed(summed, positions, types)
    assert geometry.type_vocab_size > 1
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), expected, atol=4e-3, rtol=2e-3, msg=f"seed {seed}")
