"""A root in the making: its states for some rows, with whole fragments or with such as a table falls back to."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from backends.plot.keys import FragmentShape
from backends.root.encoder import padded_attention
from backends.root.tokenizer import RootTokenizer, Text, TokenRows
from builder.construct.root.conversion import RootParts
from builder.construct.training.boundary import boundary_states
from builder.construct.training.rows import PaddedRows, padded_rows


class Student:
    """The parts of a root, put together as serving puts them together, but for the table."""

    def __init__(self, parts: RootParts, tokenizer: RootTokenizer) -> None:
        self.parts = parts
        self._tokenizer = tokenizer
        self._shape = FragmentShape.centred(parts.geometry.n)

    def rows(self, texts: Sequence[Text]) -> PaddedRows:
        return self.padded(self._tokenizer.encode(texts))

    def padded(self, tokens: TokenRows) -> PaddedRows:
        return padded_rows(tokens, self._shape, self.parts.geometry.max_tokens)

    def states(self, rows: PaddedRows, fragments: Tensor) -> list[Tensor]:
        """Boundary and upper states of the real tokens, each `[T, H]` fp32.

        Shape: fragments `[T, n]`
        """
        parts = self.parts
        boundary = boundary_states(parts.lower, parts.aggregation, rows, fragments).float()
        attend = padded_attention(parts.geometry.num_heads, rows.mask)
        upper = parts.upper.states(rows.pad(boundary), attend)
        return [boundary, *(state[rows.mask].float() for state in upper)]
