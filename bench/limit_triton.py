"""How much of the bare engine's throughput is left once clients, gRPC, Triton and the lower half come on top?

The bare engine packs and runs 64 rows again and again in this process; then clients of the real Triton, on the same
cores, keep 128 rows under way, one a request. Both by turns, on the same weights, hPLMs and dtype; the server may leave
a thread out while that is faster.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from backends.adapters.bank import read_artifact
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import HplmError
from backends.home import Home
from backends.lower.half import LowerHalf
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from bench.kit.report import Report, parser
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import BERT_BASE, SMALL, BaseHome, Family, Words

_ROOT = "base"
_LENGTHS = {128: "", 20: "_short"}


@dataclass(frozen=True)
class Settings:
    geometry: str
    rows: int
    short_rows: int
    bare_batches: int
    repeats: int = 5
    batch: int = 64
    tenants: int = 16
    texts: int = 128
    dtype: str = "bf16"

    def rows_of(self, length: int) -> int:
        return self.rows if length == max(_LENGTHS) else self.short_rows


FULL = Settings("BERT-base, 6 of 12 x 768 above PLOT", rows=512, short_rows=2_048, bare_batches=6)
QUICK = Settings("small, 6 of 12 x 256 above PLOT", rows=192, short_rows=512, bare_batches=4)


class BareEngine:
    """The stack alone: rows of mixed hPLMs that lie in memory, packed and run batch by batch."""

    def __init__(self, home: Home, hplms: Sequence[str], settings: Settings) -> None:
        root = RootFolder(home.root(_ROOT))
        self._settings = settings
        self._stack = UpperStack(root, StackSettings(dtype=settings.dtype, num_slots=settings.tenants + 1))
        registry = Registry.open(home)
        self._half = LowerHalf.open(home, registry.domain(_ROOT, _ROOT))
        entries = [entry for entry in registry.hplms() if entry.id in set(hplms)]
        registry.close()
        self._hplms = [
            self._stack.ready(entry.key, lambda entry=entry: read_artifact(home.path / entry.folder, root.fingerprint))  # type: ignore[misc]
            for entry in entries
        ]

    def rows_per_s(self, texts: Sequence[str], rng: np.random.Generator) -> float:
        batch = self._settings.batch
        rows = [torch.from_numpy(row).bfloat16() for row in self._half.encode(texts[:batch]).rows]
        started_s = time.perf_counter()
        for _ in range(self._settings.bare_batches):
            hplms = [self._hplms[number] for number in rng.integers(len(self._hplms), size=len(rows))]
            self._stack.run(self._stack.pack(rows, hplms), hplms)
        return self._settings.bare_batches * len(rows) / (time.perf_counter() - started_s)


def measure(
    home: Home, hplms: Sequence[str], texts: dict[int, list[str]], settings: Settings, seed: int
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    bare = BareEngine(home, hplms, settings)
    found = []
    with served(home, Serving(upper={"dtype": settings.dtype})) as server:
        for repeat in range(settings.repeats + 1):
            for length in _LENGTHS:
                bare_rows_per_s = bare.rows_per_s(texts[length], rng)
                rows = draw(hplms, texts[length], settings.rows_of(length), rng)
                taken = saturate(server.grpc_url, rows, 2 * settings.batch, settings.batch)
                if repeat:  # the first finds nothing in memory
                    found.append(
                        {
                            "tokens": length,
                            "bare rows per s": bare_rows_per_s,
                            "Triton rows per s": taken.rows_per_s,
                            "Triton over bare": taken.rows_per_s / bare_rows_per_s,
                            "client cores": taken.client_cores,
                        }
                    )
    return found


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    def middle(length: int, name: str) -> float:
        return float(median(row[name] for row in rows if row["tokens"] == length))

    cores = torch.get_num_threads()
    return {
        **{f"triton_over_bare{suffix}": middle(length, "Triton over bare") for length, suffix in _LENGTHS.items()},
        **{f"client_share{suffix}": middle(length, "client cores") / cores for length, suffix in _LENGTHS.items()},
    }


def main() -> None:
    question = "How much of the bare engine's throughput is left with clients, Triton and lookups on top?"
    arguments = parser("limit_triton", question).parse_args()
    settings = QUICK if arguments.quick else FULL
    geometry: RootGeometry = SMALL if arguments.quick else BERT_BASE
    words, rng = Words(geometry.vocab_size), np.random.default_rng(arguments.seed)
    texts = {length: [words.text(rng, length) for _ in range(settings.texts)] for length in _LENGTHS}
    with tempfile.TemporaryDirectory(prefix="bench_limit_") as folder:
        base = BaseHome(Path(folder) / "home", arguments.seed)
        base.add_root(_ROOT, geometry, [text for of_length in texts.values() for text in of_length])
        hplms = base.add_hplms(Family(_ROOT, "tenant", settings.tenants))
        rows = measure(base.home, hplms, texts, settings, arguments.seed)
    Report("limit_triton", asdict(settings), arguments.seed, figures(rows), rows).publish(arguments.json)


if __name__ == "__main__":
    try:
        main()
    except HplmError as error:
        sys.exit(f"bench.limit_triton: {error}")
