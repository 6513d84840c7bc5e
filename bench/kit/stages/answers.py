"""How far the answers of layers that are cut in stages are from those of the whole stack."""

from __future__ import annotations

from functools import partial

import torch

from backends.engine.compute_pool import ComputePool
from backends.engine.cut_stack import CutUpperStack
from backends.engine.pipeline import Pipeline, StagePlace
from backends.engine.stack import StackSettings, UpperStack
from backends.root.store import RootFolder
from backends.scheduling.cuts import spans_of
from bench.kit.random_root import random_hplm, random_rows

_CPU = torch.device("cpu")
_HPLMS = 8


def answers_apart(root: RootFolder, dtype: str, lengths: list[int], seed: int) -> float:
    """Return the largest difference of logits in one batch of several hPLMs, as a share of the largest logit."""
    generator = torch.Generator().manual_seed(seed)
    artifacts = [random_hplm(root, generator) for _ in range(_HPLMS)]
    rows = random_rows(lengths, root.geometry.hidden_size, generator)
    pipeline, settings = Pipeline([StagePlace(_CPU, 1)] * 2), StackSettings(dtype=dtype, num_slots=_HPLMS + 1)
    layers = root.geometry.num_upper_layers
    logits = []
    for stack in (
        UpperStack(root, settings, ComputePool(1, _CPU)),
        CutUpperStack(root, settings, pipeline, spans_of((layers // 2, layers))),
    ):
        keys = [number % _HPLMS for number in range(len(rows))]
        hplms = [stack.ready(key + 1, partial(artifacts.__getitem__, key)) for key in keys]
        logits.append(torch.stack(stack.run(stack.pack(rows, hplms), hplms)))
    pipeline.close()
    whole, stages = logits
    return float((whole - stages).abs().max() / whole.abs().max())
