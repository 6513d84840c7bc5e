"""What does one more hPLM take, on the device and on the host, and how many fit into 16 GB?

Measured at BERT-base's sizes with a bottleneck of 64 after each attention, and with what `hplm create` makes by
default: LoRA of rank 16 on all six modules and LayerNorms of its own. The table has the rows of the HMI paper's
Table 2: what one model instance takes, and how many of them fit on a device of 16 GB. Adapters that are swapped out
take no device memory, so there the host sets the limit. The shared layers of this machine's dtypes are measured on its
CPU: what a further copy adds to a process, and how long it takes to make.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import write_artifact
from backends.adapters.device_bank import AdapterBank
from backends.adapters.parts import MAX_WIDTH
from backends.adapters.recipe import AdapterRecipe
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers
from bench.kit.bare import fast_dtypes
from bench.kit.entry import Result, at_most, bench
from bench.kit.layers_memory import layers_memory
from bench.kit.random_root import BERT_BASE_UPPER, RECIPES, WIDTH, random_hplm, random_root

GB = 1_000_000_000
FLOAT_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Settings:
    resident: int = 64
    device_gb: int = 16
    host_gb: int = 312
    width: int = WIDTH
    vocab_size: int = 30_522
    full_layers: int = 12
    host: str = "the paper's machine"


@dataclass(frozen=True)
class Taken:
    """What one more hPLM takes, on average."""

    resident_bytes: float
    swapped_bytes: float
    host_bytes: float

    def figures(self) -> dict[str, float]:
        return {
            "device_bytes_per_hplm": self.resident_bytes,
            "device_bytes_per_swapped_hplm": self.swapped_bytes,
            "host_bytes_per_hplm": float(self.host_bytes),
        }


def device_bytes(geometry: RootGeometry, settings: Settings, recipe: AdapterRecipe) -> tuple[float, float]:
    """What one more resident hPLM takes, and what is left of it once another of half its width has its slot.

    All but one are swapped out; what is left is what that bank takes beyond one that never held them.
    """
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        root = random_root(Path(folder) / "root", geometry, seed=0)
        hplm = random_hplm(root, torch.Generator().manual_seed(0), recipe)
        halved = replace(recipe, width=recipe.width // 2, rank=recipe.rank // 2)
        others = random_hplm(root, torch.Generator().manual_seed(1), halved)
    slots = range(1, settings.resident + 1)
    bank, fresh = (_bank(geometry, len(slots)) for _ in range(2))
    _fill(bank, slots, hplm.adapters)
    full = bank.size_bytes
    _fill(bank, slots[1:], others.adapters)
    _fill(fresh, slots[:1], hplm.adapters)
    _fill(fresh, slots[1:], others.adapters)
    return full / len(slots) + hplm.head.size_bytes * 2, (bank.size_bytes - fresh.size_bytes) / (len(slots) - 1)


def _bank(geometry: RootGeometry, resident: int) -> AdapterBank:
    return AdapterBank(resident + 1, geometry, MAX_WIDTH, torch.bfloat16, torch.device("cpu"))


def _fill(bank: AdapterBank, slots: range, adapters: AdapterSet) -> None:
    for slot in slots:
        bank.make_room(adapters)
        bank.fill(slot, adapters)


def measure(geometry: RootGeometry, settings: Settings, recipe: AdapterRecipe) -> Taken:
    return Taken(*device_bytes(geometry, settings, recipe), host_bytes(geometry, recipe))


def host_bytes(geometry: RootGeometry, recipe: AdapterRecipe) -> int:
    """The folder of one hPLM in the bank."""
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        root = random_root(Path(folder) / "root", geometry, seed=0)
        target = Path(folder) / "hplm"
        target.mkdir()
        write_artifact(target, random_hplm(root, torch.Generator().manual_seed(0), recipe))
        return sum(path.stat().st_size for path in target.iterdir())


def upper_parameters(geometry: RootGeometry) -> int:
    return sum(weights.numel() for weights in UpperLayers(geometry).parameters())


def table(settings: Settings, taken: Mapping[str, Taken]) -> list[dict[str, object]]:
    """The paper's rows, for models of this geometry in fp32 as there, and ours in bf16."""
    upper = upper_parameters(BERT_BASE_UPPER)
    embeddings = (settings.vocab_size + BERT_BASE_UPPER.max_tokens + 2) * BERT_BASE_UPPER.hidden_size
    whole = embeddings + upper * settings.full_layers // BERT_BASE_UPPER.num_upper_layers
    room = settings.device_gb * GB
    rows: list[dict[str, object]] = []
    for dtype, size in FLOAT_BYTES.items():
        for scheme, parameters in (("dedicated", whole), ("PLOT only", upper)):
            rows.append(_row(f"{scheme}, {dtype}", parameters * size, parameters * size, room // (parameters * size)))
    rows.append(_row("shared (head only), bf16", whole * 2, 0, None))
    for adapters, of in taken.items():
        fit, by_host = int((room - upper * 2) / of.resident_bytes), int(settings.host_gb * GB / of.host_bytes)
        rows.append(_row(f"hPLM of {adapters}, resident, bf16", upper * 2, of.resident_bytes, fit))
        swapped = f"hPLM of {adapters}, swapped, bf16, {settings.host_gb} GB host"
        rows.append(_row(swapped, upper * 2, of.swapped_bytes, by_host))
    return rows


def _row(scheme: str, first: float, further: float, most: int | None) -> dict[str, object]:
    return {"scheme": scheme, "first MB": first / 1e6, "each further MB": further / 1e6, "most in 16 GB": most}


def layers_rows(geometry: RootGeometry) -> Iterator[dict[str, Any]]:
    """Measure the shared layers in each dtype that this machine is fast at."""
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        root = random_root(Path(folder) / "root", geometry, seed=0)
        for dtype in fast_dtypes():
            taken = layers_memory(root.path, dtype)
            yield {
                "scheme": f"shared layers, {dtype}, measured",
                "first MB": taken.size_bytes / 1e6,
                "made in s": taken.made_in_s,
                "over bf16's bytes": taken.size_bytes / (2 * upper_parameters(geometry)),
            }


@bench(
    "memory",
    bars={
        "device_bytes_per_hplm": at_most(1.3e6),
        "device_bytes_per_swapped_hplm": at_most(0),
        "int8_layers_over_bf16": at_most(0.55),
    },
)
def memory(options: Namespace) -> Result:
    settings = Settings()
    taken = {name: measure(BERT_BASE_UPPER, settings, recipe) for name, (_, recipe) in RECIPES.items()}
    figures = {
        f"{figure}{suffix}": value
        for name, (suffix, _) in RECIPES.items()
        for figure, value in taken[name].figures().items()
    }
    layers = list(layers_rows(BERT_BASE_UPPER))
    if len(layers) > 1:
        unquantised, quantised = layers
        figures["int8_layers_over_bf16"] = quantised["over bf16's bytes"]
        figures["int8_layers_more_s"] = quantised["made in s"] - unquantised["made in s"]
    return Result(asdict(settings), figures, [*table(settings, taken), *layers])


if __name__ == "__main__":
    memory.main()
