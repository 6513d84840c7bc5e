"""What does the engine make of a GPU: rows a second for 10,000 tenants, bare and in Triton and as a share of its peak?

The share is that of the time which the same multiply-adds take at the measured peak of the matrix product. Without a
GPU the same runs in a small size on the CPU, and the report's `device` says so.
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
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from bench.kit.report import Report, parser
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import BERT_BASE, SMALL, BaseHome, Family, Words

_ROOT = "base"
_LENGTHS = (128, 20)
_WIDTH = 64
_LABELS = 2
_TERA = 1e12


@dataclass(frozen=True)
class Settings:
    """`slots` are those of the swapping server; a second one keeps all tenants' adapters on the device."""

    device: str
    geometry: str
    tenants: int
    rows: int
    batch: int
    slots: int
    bare_batches: int
    peak_size: int
    repeats: int = 5
    texts: int = 128
    dtype: str = "bf16"
    lower_instances: int = 1


GPU = Settings(
    device="cuda",
    geometry="BERT-base, 6 of 12 x 768 above PLOT",
    tenants=10_000,
    rows=20_000,
    batch=64,
    slots=256,
    bare_batches=50,
    peak_size=8192,
    lower_instances=8,
)
CPU = Settings(
    device="cpu (no GPU here; small sizes)",
    geometry="small, 6 of 12 x 256 above PLOT",
    tenants=1_000,
    rows=192,
    batch=64,
    slots=128,
    bare_batches=4,
    peak_size=1024,
)


def peak_per_s(device: torch.device, size: int, repeats: int) -> float:
    """Floating-point operations a second of the bf16 matrix product, a multiply-add being two."""
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    found = []
    for _ in range(repeats + 1):
        started_s = time.perf_counter()
        for _ in range(4):
            left @ right
        _synchronise(device)
        found.append(4 * 2 * size**3 / (time.perf_counter() - started_s))
    return median(found[1:])


def operations_per_row(geometry: RootGeometry, length: int) -> float:
    """Of the upper half, an adapter after each attention and a head included."""
    hidden, inner = geometry.hidden_size, geometry.intermediate_size
    per_token = 4 * hidden**2 + 2 * hidden * inner + 2 * hidden * _WIDTH
    attention = 2 * length * hidden
    return 2.0 * (length * geometry.num_upper_layers * (per_token + attention) + hidden * _LABELS)


class BareEngine:
    """The stack alone, every row of a batch another tenant's."""

    def __init__(self, home: Home, settings: Settings, device: torch.device) -> None:
        root = RootFolder(home.root(_ROOT))
        self._settings, self._device, self._geometry = settings, device, root.geometry
        stack_settings = StackSettings(device=str(device), dtype=settings.dtype, num_slots=settings.batch + 1)
        self._stack = UpperStack(root, stack_settings)
        registry = Registry.open(home)
        entries = registry.hplms()[: settings.batch]
        registry.close()
        self._hplms = [
            self._stack.ready(entry.key, lambda entry=entry: read_artifact(home.path / entry.folder, root.fingerprint))  # type: ignore[misc]
            for entry in entries
        ]

    def rows_per_s(self, length: int) -> float:
        rows = [torch.randn(length, self._geometry.hidden_size).bfloat16() for _ in range(self._settings.batch)]
        started_s = time.perf_counter()
        for _ in range(self._settings.bare_batches):
            packed = self._stack.pack(rows, self._hplms)
            self._stack.copies.wait(self._stack.copies.mark())
            self._stack.run(packed, self._hplms)
        _synchronise(self._device)
        return self._settings.bare_batches * len(rows) / (time.perf_counter() - started_s)


def measure_bare(home: Home, settings: Settings, geometry: RootGeometry) -> list[dict[str, Any]]:
    device = torch.device("cuda" if settings is GPU else "cpu")
    bare = BareEngine(home, settings, device)
    rows = []
    for length in _LENGTHS:
        bare.rows_per_s(length)
        found = [(bare.rows_per_s(length), peak_per_s(device, settings.peak_size, 3)) for _ in range(settings.repeats)]
        rows_per_s, peak = (median(values) for values in zip(*found, strict=True))
        share = median(rate * operations_per_row(geometry, length) / limit for rate, limit in found)
        rows.append(
            {
                "way": "bare",
                "tokens": length,
                "rows per s": rows_per_s,
                "of the peak": share,
                "peak TFLOP/s": peak / _TERA,
            }
        )
    return rows


def measure_served(
    home: Home, hplms: Sequence[str], texts: dict[int, list[str]], settings: Settings, seed: int
) -> list[dict[str, Any]]:
    rng, rows = np.random.default_rng(seed), []
    for way, slots in (("Triton, swapping", settings.slots), ("Triton, all on the device", settings.tenants)):
        upper = {"dtype": settings.dtype, "slots": str(slots + 1), "max_rows": str(settings.batch)}
        device = "gpu" if settings is GPU else "cpu"
        serving = Serving(lower_instances=settings.lower_instances, upper=upper, device=device)  # type: ignore[arg-type]
        with served(home, serving) as server:
            for length in _LENGTHS:
                url, in_flight = server.grpc_url, 4 * settings.batch
                saturate(url, draw(hplms, texts[length], settings.rows, rng), in_flight, settings.batch)
                found = [
                    saturate(url, draw(hplms, texts[length], settings.rows, rng), in_flight, settings.batch)
                    for _ in range(settings.repeats)
                ]
                rows.append(
                    {
                        "way": way,
                        "tokens": length,
                        "rows per s": median(taken.rows_per_s for taken in found),
                        "p50 ms": median(taken.percentile_ms(50) for taken in found),
                        "p99 ms": median(taken.percentile_ms(99) for taken in found),
                        "client cores": median(taken.client_cores for taken in found),
                    }
                )
    return rows


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    rates = {(row["way"], row["tokens"]): row["rows per s"] for row in rows}
    for length, suffix in zip(_LENGTHS, ("", "_short"), strict=True):
        bare, swapping = (_row(rows, way, length) for way in ("bare", "Triton, swapping"))
        found[f"bare_rows_per_s{suffix}"] = bare["rows per s"]
        found[f"bare_over_peak{suffix}"] = bare["of the peak"]
        found[f"triton_rows_per_s{suffix}"] = swapping["rows per s"]
        found[f"triton_p99_ms{suffix}"] = swapping["p99 ms"]
        found[f"triton_over_bare{suffix}"] = swapping["rows per s"] / bare["rows per s"]
        found[f"swapping_over_resident{suffix}"] = swapping["rows per s"] / rates["Triton, all on the device", length]
    return found


def _row(rows: Sequence[dict[str, Any]], way: str, length: int) -> dict[str, Any]:
    return next(row for row in rows if (row["way"], row["tokens"]) == (way, length))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    question = "What does the engine make of a GPU: rows a second with 10,000 tenants, and the share of its peak?"
    arguments = parser("gpu", question).parse_args()
    settings, geometry = (GPU, BERT_BASE) if torch.cuda.is_available() and not arguments.quick else (CPU, SMALL)
    if settings is CPU:
        print("no GPU is used: a small size on the CPU", file=sys.stderr)
    words, rng = Words(geometry.vocab_size), np.random.default_rng(arguments.seed)
    texts = {length: [words.text(rng, length) for _ in range(settings.texts)] for length in _LENGTHS}
    with tempfile.TemporaryDirectory(prefix="bench_gpu_") as folder:
        base = BaseHome(Path(folder) / "home", arguments.seed)
        base.add_root(_ROOT, geometry, [text for of_length in texts.values() for text in of_length])
        hplms = base.add_hplms(Family(_ROOT, "tenant", settings.tenants))
        rows = measure_bare(base.home, settings, geometry)
        rows += measure_served(base.home, hplms, texts, settings, arguments.seed)
    Report("gpu", asdict(settings), arguments.seed, figures(rows), rows).publish(arguments.json)


if __name__ == "__main__":
    try:
        main()
    except HplmError as error:
        sys.exit(f"bench.gpu: {error}")
