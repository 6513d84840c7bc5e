"""The lower half of one domain's hPLMs: texts → hidden rows, by lookup alone.

Usage:
    half = LowerHalf.open(home, registry.domain("mini", "shop"))
    encoded = half.encode(["one text", "another"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from backends.home import Home
from backends.plot.chain import PlotChain
from backends.plot.statistics import HitStatistics
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.root.lower import Aggregation
from backends.root.store import RootFolder
from backends.root.tokenizer import RootTokenizer
from backends.wire import Half


@dataclass(frozen=True)
class EncodedTexts:
    """Texts after the lower half.

    Shape:
        rows: one `[L, H]` fp16 per text; truncated: `[R]`.
    """

    rows: list[Half]
    truncated: npt.NDArray[np.bool_]
    statistics: HitStatistics


class RootFront:
    """What all domains of a root share in front of the upper layers."""

    def __init__(self, root: RootFolder) -> None:
        self.fingerprint = root.fingerprint
        self.tokenizer: RootTokenizer = root.tokenizer()
        self.aggregation: Aggregation = root.aggregation()


class LowerHalf:
    """Tokenizer, chain of tables and aggregation of one domain version."""

    def __init__(self, front: RootFront, tables: Sequence[Table]) -> None:
        self._front = front
        self._chain = PlotChain(tables)

    @classmethod
    def open(cls, home: Home, domain: DomainEntry, front: RootFront | None = None) -> LowerHalf:
        """One domain by itself; the server shares fronts and tables between domains."""
        front = front or RootFront(RootFolder(home.root(domain.root)))
        return cls(front, [Table.open(home.path / folder, front.fingerprint) for folder in domain.folders])

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        tokens = self._front.tokenizer.encode(texts)
        found = self._chain.lookup(tokens.token_ids, tokens.row_offsets)
        positions, types = torch.from_numpy(tokens.positions), torch.from_numpy(tokens.type_ids)
        hidden: Half = self._front.aggregation(found.states, positions, types).to(torch.float16).numpy()
        rows = np.split(hidden, tokens.row_offsets[1:-1])
        return EncodedTexts(rows, tokens.truncated, self._chain.statistics(found.levels))
