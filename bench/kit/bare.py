"""The engine without a server: a stack with random hPLMs, batches for it, and fair timing."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.device_bank import AdapterBank
from backends.adapters.product import BatchAdapters, SegmentedAdapters
from backends.adapters.recipe import AdapterRecipe
from backends.adapters.segments import Segment
from backends.engine.compute_pool import ComputePool
from backends.engine.layouts import MakeLayout
from backends.engine.precision import fast_float_dtype, missing_for
from backends.engine.stack import ReadyHplm, StackSettings, UpperStack
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from bench.kit.random_root import BOTTLENECK, WIDTH, random_hplm, random_root, random_rows

_CPU = torch.device("cpu")
ROWS = 64
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class WaitingRows:
    """Rows of pinned hPLMs, ready to run again and again."""

    stack: UpperStack
    rows: Sequence[Tensor]
    hplms: Sequence[ReadyHplm]

    @property
    def num_tokens(self) -> int:
        return sum(len(row) for row in self.rows)

    def run(self) -> list[Tensor]:
        return self.stack.run(self.stack.pack(self.rows, self.hplms), self.hplms)

    def padded_tokens(self) -> int:
        """What the layers compute, with padding."""
        return self.stack.pack(self.rows, self.hplms).num_tokens


class BareEngine:
    """One root, and hPLMs numbered from 1 that differ in their weights only."""

    def __init__(self, root: RootFolder, num_hplms: int, seed: int, recipe: AdapterRecipe) -> None:
        self.geometry = root.geometry
        self.root = root
        self._generator = torch.Generator().manual_seed(seed)
        self._hplms: list[HplmArtifact] = [random_hplm(root, self._generator, recipe) for _ in range(num_hplms)]

    def stack(
        self,
        dtype: str = "bf16",
        adapters_of: Callable[[AdapterBank, Sequence[Segment]], BatchAdapters] = SegmentedAdapters,
        layout_of: MakeLayout | None = None,
        compute_pool: ComputePool | None = None,
    ) -> UpperStack:
        settings = StackSettings(device=engine_device().type, dtype=dtype, num_slots=len(self._hplms) + 1)
        return UpperStack(self.root, settings, compute_pool, adapters_of, layout_of)

    def rows(self, lengths: Sequence[int]) -> list[Tensor]:
        return random_rows(lengths, self.geometry.hidden_size, self._generator)

    def waiting(self, stack: UpperStack, rows: Sequence[Tensor], num_distinct: int) -> WaitingRows:
        """The rows of as many hPLMs as that, in turn."""
        keys = [index % num_distinct for index in range(len(rows))]
        return WaitingRows(stack, rows, [stack.ready(key + 1, partial(self._hplms.__getitem__, key)) for key in keys])


class HomeEngine:
    """The stack of a home's root: rows of mixed hPLMs that lie in memory, packed and run batch by batch."""

    def __init__(self, home: Home, root_name: str, hplms: Sequence[str], settings: StackSettings) -> None:
        root = RootFolder(home.root(root_name))
        self.geometry = root.geometry
        self._stack = UpperStack(root, settings)
        with closing(Registry.open(home)) as registry:
            entries = [registry.hplm(hplm) for hplm in hplms]
        self._hplms = [
            self._stack.ready(entry.key, partial(read_artifact, home.path / entry.folder, root.fingerprint))
            for entry in entries
        ]

    def rows_per_s(self, rows: Sequence[Tensor], batches: int) -> float:
        """Measure batches of the same rows, each time of the next hPLMs."""
        hplms = cycle(self._hplms)
        started_s = time.perf_counter()
        for _ in range(batches):
            of_batch = list(islice(hplms, len(rows)))
            packed = self._stack.pack(rows, of_batch)
            self._stack.copies.wait(self._stack.copies.mark())
            self._stack.run(packed, of_batch)
        return batches * len(rows) / (time.perf_counter() - started_s)


def engine_device() -> torch.device:
    """Return where a bare engine computes."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_dtypes(device: torch.device = _CPU) -> tuple[str, ...]:
    """Return the dtypes that a device is fast at, the slowest first: bf16 or fp32, and int8 on processors."""
    if device.type != "cpu" or missing_for("int8", device):
        return (fast_float_dtype(device),)
    return fast_float_dtype(device), "int8"


@contextmanager
def bare_engine(
    geometry: RootGeometry, num_hplms: int, seed: int, recipe: AdapterRecipe = BOTTLENECK
) -> Iterator[BareEngine]:
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        yield BareEngine(random_root(Path(folder) / "root", geometry, seed), num_hplms, seed, recipe)


def multiply_adds(geometry: RootGeometry, lengths: Sequence[int], width: int = WIDTH) -> int:
    """Count those of the upper layers over rows of these lengths, adapters included, padding not."""
    hidden, inner, layers = geometry.hidden_size, geometry.intermediate_size, geometry.num_upper_layers
    per_token = 4 * hidden * hidden + 2 * hidden * inner + 2 * hidden * width
    return layers * sum(length * per_token + 2 * length * length * hidden for length in lengths)


def interleaved(ways: Mapping[str, Callable[[], object]], repeats: int) -> Seconds:
    """Each way's time in every repeat; all ways take turns, after one turn that does not count."""
    seconds: Seconds = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            elapsed = timed(run)
            if repeat:
                seconds[name].append(elapsed)
    return seconds


def timed(run: Callable[[], object]) -> float:
    """Seconds until the results of `run` are on the host."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios within each repeat, so that a slow moment touches both sides."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
