"""How many rows a second do hPLMs answer against dedicated models in OpenVINO, ONNX Runtime and PyTorch, in one run?

A peer serves a whole BERT-base for each tenant, in this process, without tokenizer, embeddings or clients, and takes
the waiting rows tenant by tenant, in batches of about the same length. As many rows wait for it as ours has in flight.
With 1,000 tenants it loads models from the disk into the memory of 16 models in bf16, or in fp32 where the processor
has no instructions for bf16. Ours: PLOT, six shared layers and the adapters that `hplm create` makes by default, bare
(the engine alone in this process), and as served by the real Triton with its clients on the same cores; beside it hPLMs
with a bottleneck of 64 in each layer instead, through Triton too. PLOT holds every tri-gram of the texts, so ours never
computes lower layers. Equal threads; one turn after another; a ratio is to the fastest peer of its turn.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.precision import fast_float_dtype, fastest_dtype
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from bench.kit.bare import fast_dtypes
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, bench
from bench.kit.peers.bert import padded, random_bert
from bench.kit.peers.onnxruntime import OnnxRuntime
from bench.kit.peers.openvino import OpenVino
from bench.kit.peers.ours import BareOurs, Ours, ours
from bench.kit.peers.picture import draw_peers
from bench.kit.peers.pytorch import PyTorch
from bench.kit.peers.runtime import WEIGHT_BYTES, Runtime, split_installed
from bench.kit.peers.tenants import TenantModels, WaitingRow
from bench.kit.peers.turns import Cell, Turn, Turns
from bench.kit.progress import one_by_one
from bench.kit.random_root import random_rows
from bench.kit.report import machine
from bench.kit.synthetic_home import BERT_BASE
from bench.tasks.real_lengths import real_lengths

SERVED = "ours, through Triton"
_BOTTLENECKS = "ours, with bottlenecks"
_BARE = "ours, bare"
_MANY = 1_000
_COLD, _CACHED = "128, from the disk", "128"
_SUFFIXES = {"128": "", "20": "_short", "real": "_real"}
_COSINE = {"fp32": 0.9999, "bf16": 0.99, "int8": 0.9}
"""How alike a runtime's answers must be to those of PyTorch in fp32."""


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        served_rows: Rows that are timed through Triton, by the name of their lengths.
        in_flight: Rows that ours has in flight, and that wait for a peer.
        resident: Models in bf16 or fp32 whose memory a peer has.
    """

    served_rows: Mapping[str, int]
    turns: int
    in_flight: int = 128
    resident: int = 16
    geometry: str = "BERT-base, 12 x 768; ours 6 of 12 above PLOT"
    adapters: str = "default recipe, and bottlenecks of 64"
    waiting: str = "as many rows for every peer as ours has in flight"
    ratio: str = "to the fastest peer of the same turn, the median over the turns"


FULL = Settings({"128": 128, "20": 256, "real": 256}, turns=5)
QUICK = replace(FULL, in_flight=32, turns=1)


@dataclass(frozen=True)
class Peer:
    """A runtime, its model's file, how many of its models fit, and the cosine of its answers with PyTorch in fp32."""

    runtime: Runtime
    path: Path
    resident: int
    likeness: float

    def __str__(self) -> str:
        return self.runtime.name


class Peers:
    """All runtimes that are installed, and the rows that wait for them."""

    def __init__(self, settings: Settings, lengths: Mapping[str, Sequence[int]], geometry: RootGeometry, seed: int):
        self._settings, self._geometry, self._seed = settings, geometry, seed
        generator = torch.Generator().manual_seed(seed)
        rows = {name: random_rows(of_name, geometry.hidden_size, generator) for name, of_name in lengths.items()}
        self._rows = {name: [row.float() for row in of_name] for name, of_name in rows.items()}

    def prepared(self, folder: Path) -> list[Peer]:
        here, left_out = split_installed(runtimes(self._geometry))
        for line in left_out:
            print(f"bench.peers: {line}", file=sys.stderr)
        return [self._prepared(runtime, folder / str(number)) for number, runtime in enumerate(here)]

    def _prepared(self, runtime: Runtime, folder: Path) -> Peer:
        folder.mkdir()
        model, rows = random_bert(self._geometry, self._seed), self._rows["20"][:8] + self._rows["128"][:8]
        path = runtime.prepare(model, rows[::2], folder)
        memory = self._settings.resident * WEIGHT_BYTES[_fast_float_dtype()]
        with torch.inference_mode():
            expected = torch.cat([model(*padded([row], len(row), torch.float32)) for row in rows])
        answered = torch.stack(TenantModels(runtime, path, 1).logits([(0, row) for row in rows]))
        likeness = functional.cosine_similarity(answered.flatten(), expected.flatten(), dim=0).item()
        if not likeness >= _COSINE[runtime.dtype]:
            raise InvalidArgumentError(f"{runtime.name} answers wrongly: cosine {likeness:.3f} with PyTorch in fp32")
        return Peer(runtime, path, memory // WEIGHT_BYTES[runtime.dtype], likeness)

    def measure(self, peer: Peer, rng: np.random.Generator) -> Turn:
        """Rows a second of each cell; its models leave the memory afterwards."""
        name, taken = peer.runtime.name, Turn()
        models = TenantModels(peer.runtime, peer.path, peer.resident)
        # A peer that leaves fast instructions unused is slower than it is with them: one tenant shows by how much.
        is_slow = peer.runtime.dtype not in ("int8", _fast_float_dtype())
        for lengths, tenants in cells(self._settings)[: 1 if is_slow else None]:
            window = self._window(lengths, tenants, rng)
            models.logits(window)
            taken[name, lengths, tenants] = _rows_per_s(window, models.logits)
        if not is_slow:
            for lengths in (_CACHED, _COLD):
                window = self._window("128", _MANY, rng)
                run = partial(models.logits, cold=lengths == _COLD)
                taken[name, lengths, _MANY] = _rows_per_s(window, run)
        return taken

    def _window(self, lengths: str, tenants: int, rng: np.random.Generator) -> list[WaitingRow]:
        rows, count = self._rows[lengths], self._settings.in_flight
        keys, numbers = rng.integers(tenants, size=count), rng.integers(len(rows), size=count)
        return [(int(key), rows[number]) for key, number in zip(keys, numbers, strict=True)]


def _rows_per_s(window: list[WaitingRow], run: Callable[[list[WaitingRow]], list[Tensor]]) -> float:
    started_s = time.perf_counter()
    run(window)
    return len(window) / (time.perf_counter() - started_s)


def cells(settings: Settings) -> list[tuple[str, int]]:
    """Lengths and numbers of tenants, all of whose models are in memory."""
    return [("128", 1), *((lengths, settings.resident) for lengths in settings.served_rows)]


def runtimes(geometry: RootGeometry) -> list[Runtime]:
    unquantised = _fast_float_dtype()
    return [
        OpenVino("int8"),
        OpenVino(unquantised),
        OnnxRuntime("int8"),
        OnnxRuntime("fp32"),
        PyTorch(geometry, unquantised),
        PyTorch(geometry, unquantised, is_compiled=True),
    ]


def _fast_float_dtype() -> Literal["bf16", "fp32"]:
    return fast_float_dtype(torch.device("cpu"))


@dataclass(frozen=True)
class Ways:
    """Everything that takes turns."""

    settings: Settings
    lengths: Mapping[str, Sequence[int]]
    peers: Peers
    of_peers: Sequence[Peer]
    served: Ours
    bare: Mapping[tuple[str, int], BareOurs]
    rng: np.random.Generator

    def turn(self) -> Turn:
        taken: Turn = {}
        in_turn = [self.of_peers[number] for number in self.rng.permutation(len(self.of_peers))]
        for peer in one_by_one(in_turn, "peers", "of one turn"):
            taken |= self.peers.measure(peer, self.rng)
        for lengths, tenants in cells(self.settings):
            for (way, bare_tenants), engine in self.bare.items():
                if bare_tenants == tenants:
                    taken[way, lengths, tenants] = engine.rows_per_s(self.lengths[lengths])
            rows = self.settings.served_rows[lengths]
            for way, hplms in ((SERVED, self.served.hplms), (_BOTTLENECKS, self.served.with_bottlenecks)):
                taken[way, lengths, tenants] = self.served.served_rows_per_s(lengths, hplms[:tenants], rows, self.rng)
        rows = self.settings.served_rows["128"]
        taken[SERVED, _CACHED, _MANY] = self.served.served_rows_per_s("128", self.served.hplms, rows, self.rng)
        return taken


@contextmanager
def ways(settings: Settings, lengths: Mapping[str, Sequence[int]], geometry: RootGeometry, seed: int) -> Iterator[Ways]:
    rng, peers = np.random.default_rng((seed, time.time_ns())), Peers(settings, lengths, geometry, seed)
    with (
        tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder,
        ours(geometry, _MANY, settings.resident, lengths, settings.in_flight, seed) as served,
    ):
        bare = {
            (f"{_BARE} {dtype}", tenants): BareOurs(served.home, dtype, served.hplms[:tenants], seed)
            for dtype in fast_dtypes()
            for tenants in (1, settings.resident)
        }
        yield Ways(settings, lengths, peers, peers.prepared(Path(folder)), served, bare, rng)


def figures(rates: Mapping[Cell, Sequence[float]]) -> dict[str, float]:
    """Ours over the fastest peer of the same turn, by lengths and tenants: medians over the turns."""

    def over_best(way: str, lengths: str, tenants: int, of_peers: str) -> float:
        peers = [own for (name, *of), own in rates.items() if of == [of_peers, tenants] and not _is_ours(name)]
        fastest: list[float] = [max(of_turn) for of_turn in zip(*peers, strict=True)]
        return median(a / b for a, b in zip(rates[way, lengths, tenants], fastest, strict=True))

    bare = [cell[0] for cell in rates if cell[0].startswith(_BARE)][-1]
    found = {}
    for tenants in sorted({tenants for _, _, tenants in rates if tenants != _MANY}):
        for lengths, suffix in _SUFFIXES.items():
            if (SERVED, lengths, tenants) in rates:
                for name, way in (("hplm", SERVED), ("bare", bare), ("bottlenecks", _BOTTLENECKS)):
                    found[f"{name}_over_best_peer_{tenants}{suffix}"] = over_best(way, lengths, tenants, lengths)
    for name, of_peers in (("", _COLD), ("_cached", _CACHED)):
        found[f"hplm_over_best_peer_{_MANY}{name}"] = over_best(SERVED, _CACHED, _MANY, of_peers)
    return found


def _is_ours(way: str) -> bool:
    return way.startswith("ours")


def table(rates: Mapping[Cell, Sequence[float]]) -> list[dict[str, Any]]:
    return [
        {
            "way": way,
            "lengths": lengths,
            "tenants": tenants,
            "rows per s": median(of_cell),
            "least": min(of_cell),
            "most": max(of_cell),
            "turns": ", ".join(f"{rate:.4g}" for rate in of_cell),
        }
        for (way, lengths, tenants), of_cell in rates.items()
    ]


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--data", type=Path, help="a folder whose tasks/ hold real texts; needs --tokenizer")
    arguments.add_argument("--tokenizer", type=Path, help="a tokenizer.json for them")
    arguments.add_argument("--turns", type=int, help="how many turns are measured now")
    arguments.add_argument(
        "--keep", type=Path, metavar="FILE", help="turns that were measured, to which others are added"
    )


@bench(
    "peers",
    quick_s=QUICK_LOADS_S,
    bars={
        "hplm_over_best_peer_16": at_least(1.5),
        "hplm_over_best_peer_16_short": at_least(1.4),
        "hplm_over_best_peer_16_real": at_least(1.5),
        "hplm_over_best_peer_1000": at_least(6),
    },
    add_options=add_options,
)
def peers(options: Namespace) -> Result:
    if (options.data is None) != (options.tokenizer is None):
        raise InvalidArgumentError("--data and --tokenizer belong together")
    if options.turns is not None and options.turns < 1:
        raise InvalidArgumentError("--turns is at least 1")
    settings = QUICK if options.quick else FULL
    lengths: dict[str, Sequence[int]] = {name: [int(name)] * settings.in_flight for name in ("128", "20")}
    if options.data is not None:
        lengths["real"] = _drawn_lengths(options, settings)
    settings = replace(settings, served_rows={name: settings.served_rows[name] for name in lengths})
    described = {**asdict(settings), "threads": torch.get_num_threads(), "served_dtype": fastest_dtype("cpu")[0]}
    if "real" in lengths:
        described["real_mean_tokens"] = float(np.mean(lengths["real"]))
    turns = Turns.opened({**described, "seed": options.seed, "machine": machine()}, options.keep)
    with ways(settings, lengths, BERT_BASE, options.seed) as measured:
        if not measured.of_peers:
            raise InvalidArgumentError("no peer is installed")
        turns.measure(measured.turn, options.turns or settings.turns)
        described |= {f"cosine of {peer.runtime.name}": peer.likeness for peer in measured.of_peers}
    rates = turns.rates()
    if options.json is not None:
        draw_peers(rates, options.json.with_suffix(".svg"))
    return Result({**described, "turns": len(turns.taken)}, figures(rates), table(rates))


def _drawn_lengths(options: Namespace, settings: Settings) -> list[int]:
    """Draw lengths of real texts, of all tasks alike."""
    of_tasks = list(real_lengths(options.data, options.tokenizer, BERT_BASE.max_tokens).values())
    rng = np.random.default_rng(options.seed)
    return [int(rng.choice(of_tasks[number % len(of_tasks)])) for number in range(settings.in_flight)]


if __name__ == "__main__":
    peers.main()
