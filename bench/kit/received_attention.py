"""The measure of Tabi for words that a row may lose: how much attention each token receives below the exit."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from backends.engine.packing import MicroBatch
from backends.engine.pruning import Bools, RowAtExit, kept_by_scores
from backends.engine.stack import StackSettings, UpperStack
from backends.root.encoder import Attend
from backends.root.store import RootFolder


class AttentiveStack(UpperStack):
    """Upper layers whose rows lose the words that receive least attention, summed over layers, heads and tokens.

    No kernel returns probabilities, so that they are computed once more; what that takes is no measure of pruning.
    """

    def __init__(self, root: RootFolder, settings: StackSettings) -> None:
        super().__init__(root, settings, words_of=self._kept)
        self._of_thread = threading.local()

    def attention(self, batch: MicroBatch) -> Attend:
        attend, grid = super().attention(batch), batch.grid
        received = self._of_thread.received = torch.zeros(grid.num_tokens)
        num_heads = self._geometry.num_heads

        def attend_and_note(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            for start, length in zip(grid.starts, grid.lengths, strict=True):
                tokens = slice(start, start + length)
                received[tokens] += received_attention(queries[tokens], keys[tokens], num_heads)
            return attend(layer, queries, keys, values)

        return attend_and_note

    def _kept(self, states: Tensor, rows: Sequence[RowAtExit]) -> list[Bools]:
        return kept_by_scores(self._of_thread.received, rows)


def received_attention(queries: Tensor, keys: Tensor, num_heads: int) -> Tensor:
    """Return the probabilities that each token of a row receives, summed over heads and tokens: `[L, H]` → `[L]`."""
    split = [states.float().view(len(states), num_heads, -1).transpose(0, 1) for states in (queries, keys)]
    scores = split[0] @ split[1].transpose(1, 2) / split[0].shape[-1] ** 0.5
    return torch.softmax(scores, dim=-1).sum(dim=(0, 1)).cpu()
