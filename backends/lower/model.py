"""The lower model of one domain's hPLMs: texts → hidden rows, by lookup alone.

Usage:
    lower_model = LowerModel.open(home, registry.domain("mini", "shop"))
    encoded = lower_model.encode(["one text", "another"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from backends.home import Home
from backends.plot.arrays import Found, Rows
from backends.plot.chain import PendingLookup, PlotChain, Supplier
from backends.plot.statistics import HitStatistics
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.root.store import RootFolder
from backends.root.tokenizer import RootTokenizer, Text, TokenRows
from backends.root.word_marks import WordMarks
from backends.root.words import RowWords
from backends.trace import Lane, span
from backends.wire import Float16Array

_CHUNK_TOKENS = 256


@dataclass(frozen=True)
class EncodedTexts:
    """Texts after the lower layers.

    `exact` says of which texts every token got its whole fragment, `computing_us` what computing took for each.

    Shape:
        rows: one `[L, H]` fp16 per text; truncated, exact, computing_us: `[R]`; words: R, where they were requested;
        middles: R, of pairs the first token of the second segment.
    """

    rows: list[Float16Array]
    truncated: npt.NDArray[np.bool_]
    exact: npt.NDArray[np.bool_]
    computing_us: npt.NDArray[np.float64]
    words: Sequence[RowWords | None]
    middles: Sequence[int | None]
    statistics: HitStatistics


@dataclass(frozen=True)
class PendingTexts:
    """Texts whose missing fragments may still be computed; see `PendingLookup`.

    Attributes:
        computing_us: Processor time that was spent on each text's fragments so far, `[R]`.
    """

    tokens: TokenRows
    lookup: PendingLookup
    computing_us: npt.NDArray[np.float64]

    @property
    def missing_rows(self) -> Rows:
        """The text of each missing token.

        Shape: [M]
        """
        return self.tokens.rows_of(self.lookup.missing)

    def charge(self, computed: Found, us_per_token: float) -> None:
        """Note what the missing tokens that were `computed` took.

        Shape: computed [M]
        """
        counts = np.bincount(self.missing_rows[computed], minlength=len(self.computing_us))
        np.add(self.computing_us, us_per_token * counts, out=self.computing_us)


class RootFront:
    """The tokenizer and layers in front of the upper layers; all domains of a root share them."""

    def __init__(self, root: RootFolder) -> None:
        self.fingerprint = root.fingerprint
        self.tokenizer: RootTokenizer = root.tokenizer()
        aggregation = root.aggregation()
        self._norm = aggregation.norm
        # Of every type at every position, so that both are read at once.
        types, positions = aggregation.type_embeddings.weight, aggregation.position_embeddings.weight
        self._embeddings = (types[:, None] + positions).detach().flatten(0, 1)
        self._num_positions = len(positions)

    def hidden(self, summed: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        """`Aggregation` in fp16, a few tokens at a time, so that intermediate states stay in the caches."""
        rows = types * self._num_positions + positions
        chunks = zip(torch.split(summed, _CHUNK_TOKENS), torch.split(rows, _CHUNK_TOKENS), strict=True)
        hidden = [
            self._norm(functional.embedding(places, self._embeddings).add_(part)).half() for part, places in chunks
        ]
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden)


class LowerModel:
    """Tokenizer, chain of tables and aggregation of one domain version."""

    def __init__(
        self, front: RootFront, tables: Sequence[Table], suppliers: Sequence[Supplier] = (), computes: bool = False
    ) -> None:
        self._front = front
        self._chain = PlotChain(tables, suppliers, computes)

    @property
    def max_tokens(self) -> int:
        """Longer texts are cut."""
        return self._front.tokenizer.max_tokens

    @property
    def num_special_tokens(self) -> int:
        """Number of special tokens that each text gets beside its own."""
        return self._front.tokenizer.num_special_tokens

    @classmethod
    def open(
        cls, home: Home, domain: DomainEntry, front: RootFront | None = None, suppliers: Sequence[Supplier] = ()
    ) -> LowerModel:
        """Open one domain by itself; the server shares fronts and tables between domains."""
        front = front or RootFront(RootFolder(home.root(domain.root)))
        return cls(front, [Table.open(home.path / folder, front.fingerprint) for folder in domain.folders], suppliers)

    @property
    def level_names(self) -> Sequence[str]:
        return self._chain.level_names

    def encode(self, texts: Sequence[Text], with_words: Sequence[bool] = ()) -> EncodedTexts:
        return self.finish(self.begin(texts, with_words))

    def begin(self, texts: Sequence[Text], with_words: Sequence[bool] = ()) -> PendingTexts:
        """Tokenise texts and find their fragments."""
        with span(Lane.RETRIEVAL, "tokenise", rows=len(texts)):
            tokens = self._front.tokenizer.encode(texts, with_words)
        with span(Lane.RETRIEVAL, "look up", rows=len(texts)):
            lookup = self._chain.begin(tokens.token_ids, tokens.row_offsets)
        return PendingTexts(tokens, lookup, np.zeros(len(texts)))

    def word_marks(self, pending: PendingTexts) -> list[WordMarks]:
        """Return where the words of each text begin."""
        tokens = pending.tokens
        marks = self._front.tokenizer.word_marks(tokens.token_ids)
        return [marks[start:end] for start, end in pairwise(tokens.row_offsets.tolist())]

    @torch.inference_mode()
    def finish(self, pending: PendingTexts) -> EncodedTexts:
        """Aggregate; shorter fragments stand in for those that are still missing."""
        tokens = pending.tokens
        with span(Lane.RETRIEVAL, "aggregate", rows=len(tokens.truncated)):
            resolved = pending.lookup.finish()
            positions, types = torch.from_numpy(tokens.positions), torch.from_numpy(tokens.type_ids)
            states = self._chain.states(resolved, tokens.row_offsets)
            hidden: Float16Array = self._front.hidden(states, positions, types).numpy()
        rows = [hidden[start:end] for start, end in pairwise(tokens.row_offsets.tolist())]
        exact = np.ones(len(rows), np.bool_)
        exact[tokens.rows_of(np.flatnonzero(~self._chain.are_whole(resolved.levels)))] = False
        statistics = self._chain.statistics(resolved.levels)
        return EncodedTexts(
            rows, tokens.truncated, exact, pending.computing_us, tokens.words, tokens.middles, statistics
        )
