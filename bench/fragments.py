"""What does a fragment cost that no table holds, and what does each dtype change of it?

The lower layers of a demo's root and of BERT-base, bare, on one thread, as a process of `hplm_lower` computes by
default. Weights and fragments are random, so errors are of random layers; what trained ones lose, `bench.int8_quality`
says. All dtypes take turns in one run.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from backends.lower.fragments import ComputesFragments, fragment_computer
from backends.lower.settings import LowerDtype, lower_dtype_beside
from backends.root.geometry import RootGeometry
from backends.root.lower import FragmentEncoder
from bench.kit.bare import fast_dtypes, interleaved, median_ratio
from bench.kit.entry import Result, bench
from bench.kit.random_root import random_parts
from bench.kit.synthetic_home import BERT_BASE, MINILM

_MODELS: Mapping[str, RootGeometry] = {"demo": MINILM, "bert_base": BERT_BASE}
_MANY, _FEW = 192, 16


@dataclass(frozen=True)
class Settings:
    repeats: int = 15
    counts: tuple[int, ...] = (_FEW, _MANY)
    threads: int = 1
    timing: str = "all dtypes in turn, the median of the ratios within each turn"


FULL = Settings()
QUICK = replace(FULL, repeats=3)


def _computers(geometry: RootGeometry, seed: int) -> dict[LowerDtype, ComputesFragments]:
    """Return what computes in each dtype that this machine is fast at, and in fp32; the slowest first."""
    encoder = random_parts(geometry, torch.Generator().manual_seed(seed))["lower"]
    assert isinstance(encoder, FragmentEncoder)
    dtypes: tuple[LowerDtype, ...] = ("fp32", *(lower_dtype_beside(dtype) for dtype in fast_dtypes()))
    return {dtype: fragment_computer(encoder, geometry, dtype) for dtype in dict.fromkeys(dtypes)}


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def measure(model: str, settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    geometry = _MODELS[model]
    computers = _computers(geometry, seed)
    mark = "" if model == "demo" else f"_{model}"
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for count in settings.counts:
        generator = torch.Generator().manual_seed(seed + count)
        ids = torch.randint(1, geometry.vocab_size, (count, geometry.n), generator=generator)
        seconds = interleaved({dtype: partial(compute, ids) for dtype, compute in computers.items()}, settings.repeats)
        exact = computers["fp32"](ids)
        for dtype, compute in computers.items():
            us = 1e6 * median(seconds[dtype]) / count
            row = {"model": model, "fragments at once": count, "dtype": dtype, "us each": us}
            rows.append({**row, "error": _relative_error(compute(ids), exact)})
            if count == _MANY:
                figures[f"fragment_us_{dtype}{mark}"] = us
        *others, last = computers
        if count == _MANY:
            ratios = {dtype: median_ratio(seconds[dtype], seconds[last]) for dtype in others}
            figures |= {f"{last}_over_{dtype}{mark}": ratio for dtype, ratio in ratios.items()}
    return figures, rows


@bench("fragments")
def fragments(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    threads_before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        measured = [measure(model, settings, options.seed) for model in _MODELS]
    finally:
        torch.set_num_threads(threads_before)
    figures = {name: value for found, _ in measured for name, value in found.items()}
    return Result(asdict(settings), figures, [row for _, rows in measured for row in rows])


if __name__ == "__main__":
    fragments.main()
