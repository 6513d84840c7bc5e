"""Our side of `bench.peers`: a home of hPLMs, its engine in this process, and the real server on the same cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from backends.engine.precision import fastest_dtype
from backends.engine.stack import StackSettings
from backends.home import Home
from backends.root.geometry import RootGeometry
from bench.kit.bare import HomeEngine
from bench.kit.random_root import BOTTLENECK, random_rows
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import ROOT, Family, Words, base_home
from builder.settings.hplm import LORA_EVERYWHERE

_BATCH = 64
_SLOTS = 128
"""As many as an export has by default."""
_EDGE_ROWS = 64


@dataclass(frozen=True)
class Ours:
    """An open server and the home behind it.

    Args:
        home: Its home.
        hplms: Ones with the default adapters.
        with_bottlenecks: Others, fewer, with a bottleneck in each layer instead.
        texts: By the name of their lengths.
        url: Its gRPC endpoint.
        in_flight: Requests at once.
    """

    home: Home
    hplms: Sequence[str]
    with_bottlenecks: Sequence[str]
    texts: Mapping[str, Sequence[str]]
    url: str
    in_flight: int

    def served_rows_per_s(self, lengths: str, hplms: Sequence[str], rows: int, rng: np.random.Generator) -> float:
        requested = draw(hplms, self.texts[lengths], rows + 2 * _EDGE_ROWS, rng)
        return saturate(self.url, requested, self.in_flight).rows_per_s(_EDGE_ROWS)


@contextmanager
def ours(
    geometry: RootGeometry,
    tenants: int,
    bottlenecks: int,
    lengths: Mapping[str, Sequence[int]],
    in_flight: int,
    seed: int,
) -> Iterator[Ours]:
    """Serve so many tenants with the default adapters, and so many with bottlenecks."""
    rng, words = np.random.default_rng(seed), Words(geometry.vocab_size)
    texts = {name: [words.text(rng, length) for length in of_name] for name, of_name in lengths.items()}
    with base_home(seed) as base:
        base.add_root(ROOT, geometry, [text for of_name in texts.values() for text in of_name])
        hplms = base.add_hplms(Family(ROOT, "tenant", tenants, LORA_EVERYWHERE))
        others = base.add_hplms(Family(ROOT, "bottleneck", bottlenecks, BOTTLENECK))
        with served(base.home, Serving(upper={"dtype": fastest_dtype("cpu")[0], "slots": str(_SLOTS + 1)})) as server:
            # A version's file is checked when it is first requested, which a server does once in its life.
            first_word = next(iter(texts.values()))[0].split()[0]
            saturate(server.grpc_url, [(hplm, first_word) for hplm in (*hplms, *others)], in_flight)
            yield Ours(base.home, hplms, others, texts, server.grpc_url, in_flight)


class BareOurs:
    """Our engine in this process, in one dtype, over hidden rows that lie in memory."""

    def __init__(self, home: Home, dtype: str, hplms: Sequence[str], seed: int) -> None:
        self._engine = HomeEngine(home, ROOT, hplms, StackSettings(dtype=dtype, num_slots=len(hplms) + 1))
        self._generator = torch.Generator().manual_seed(seed)

    def rows_per_s(self, lengths: Sequence[int]) -> float:
        rows = random_rows(lengths, self._engine.geometry.hidden_size, self._generator)
        batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
        return len(rows) / sum(len(batch) / self._engine.rows_per_s(batch, 1) for batch in batches)
