"""The masked language model around a root: fragments → lower layers → shared layers → a guess for every hidden token.

The models that roots are made of come without a head for this, so one is trained per root, everything else frozen,
before any domain is pretrained further.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.lower import FragmentEncoder
from backends.root.store import RootFolder
from builder.construct.domain.masking import MaskedRows
from builder.construct.training.device import mixed_precision
from builder.construct.training.rows import PaddedRows, boundary_states, filled_up


class MlmHead(nn.Module):
    """The head that guesses the token behind each final state.

    Semantics:
        logits = LN(gelu(W·x + b)) · Eᵀ + c, with the word embeddings E
    Shape:
        states: `[M, H]`, word_embeddings: `[V, E]` → `[M, V]`.
    """

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        embedded = geometry.embedding_size or geometry.hidden_size
        self.dense = nn.Linear(geometry.hidden_size, embedded)
        self.norm = nn.LayerNorm(embedded, eps=geometry.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(geometry.vocab_size))

    def forward(self, states: Tensor, word_embeddings: Tensor) -> Tensor:
        return functional.linear(self.norm(functional.gelu(self.dense(states))), word_embeddings, self.bias)


class MaskedLanguageModel:
    """A root's frozen parts around lower layers that may learn; the lower layers and the head are moved to `device`."""

    def __init__(self, root: RootFolder, lower: FragmentEncoder, head: MlmHead, device: torch.device) -> None:
        self.lower = lower.to(device)
        self.head = head.to(device)
        self._device = device
        self._geometry = root.geometry
        self._aggregation = root.aggregation().to(device)
        self._upper = root.upper().to(device)

    def guess(self, masked: MaskedRows) -> tuple[Tensor, Tensor]:
        """The cross-entropy of every hidden token, and the boundary states.

        Shape: `[M]` fp32, `[T, H]` fp32
        """
        masked = masked.to(self._device)
        with mixed_precision(self._device):
            boundary = boundary_states(self.lower, self._aggregation, masked.rows)
            attend = padded_attention(self._geometry.num_heads, masked.rows.mask)
            final = self._upper(masked.rows.pad(boundary), attend)[masked.rows.mask][masked.chosen]
            logits = self.head(filled_up(final), self.lower.word_embeddings.weight)[: len(final)]
        return functional.cross_entropy(logits.float(), masked.targets, reduction="none"), boundary.float()

    @torch.no_grad()
    def boundary(self, rows: PaddedRows) -> Tensor:
        """Compute the inputs of the shared layers, `[T, H]` fp32, to compare with and not to learn from."""
        with mixed_precision(self._device):
            return boundary_states(self.lower, self._aggregation, rows.to(self._device)).float()
