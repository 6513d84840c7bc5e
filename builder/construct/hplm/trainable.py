"""The models that a trainer of a task trains, the rows they learn from, and their predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from builder.construct.tasks.objective import Objective
from builder.construct.training.device import mixed_precision

_PREDICTED_ROWS = 64
_POOLED_BATCHES = 16

Indices = npt.NDArray[np.int64]
OnRows = Callable[[int, int], None]
"""Called with the number of rows done, and of all."""


class TrainableModel(Protocol):
    """A model whose head answers by the states that it reads.

    Inputs, and the segment of each token `[B, L]` → `[B, C]`, or `[B, L, C]` where the task is about words.

    The parameters of `trained` whose names begin with `head` learn at the head's rate.
    """

    def __call__(self, inputs: Tensor, segments: Tensor, /) -> Tensor: ...

    def read(self, inputs: Tensor, segments: Tensor, /) -> Tensor:
        """Compute the states that the head reads: `[B, P]` or `[B, L, P]` fp32."""

    def answer(self, states: Tensor, /) -> Tensor:
        """Compute the head's answers from such states: `[B, C]` or `[B, L, C]`."""

    def trained(self) -> dict[str, nn.Parameter]: ...

    def train(self, mode: bool = True) -> nn.Module: ...


class TaskRows(Protocol):
    """Rows of any lengths to learn from, with a target each."""

    @property
    def lengths(self) -> Indices: ...

    @property
    def targets(self) -> Sequence[Any]: ...

    def padded(self, indices: Indices, device: torch.device) -> tuple[Tensor, Tensor]:
        """The inputs of some rows, and the segment of each token `[B, L]`, 0 where there is none."""


def predict(
    model: TrainableModel,
    objective: Objective[Any],
    dataset: TaskRows,
    device: torch.device,
    on_rows: OnRows | None = None,
) -> list[Tensor]:
    """Compute the answers of each row that the task looks at: `[m, C]`."""
    model.train(False)
    return of_rows(model, objective, dataset, device, on_rows)


def read(
    model: TrainableModel,
    objective: Objective[Any],
    dataset: TaskRows,
    device: torch.device,
    on_rows: OnRows | None = None,
) -> list[Tensor]:
    """Compute the states of each row from which the head answers: `[m, P]`."""
    model.train(False)
    return of_rows(model.read, objective, dataset, device, on_rows)


@torch.no_grad()
def of_rows(
    model: Callable[[Tensor, Tensor], Tensor],
    objective: Objective[Any],
    dataset: TaskRows,
    device: torch.device,
    on_rows: OnRows | None,
) -> list[Tensor]:
    """Compute what `model` returns of each row that the task looks at: `[m, …]`."""
    results: list[Tensor] = [torch.empty(0)] * len(dataset.targets)
    done = 0
    for indices in batches(dataset.lengths, np.arange(len(dataset.targets)), _PREDICTED_ROWS):
        inputs, segments = dataset.padded(indices, device)
        with mixed_precision(device):
            outputs = model(inputs, segments)
        rows = objective.rows(outputs.float().cpu(), [dataset.targets[index] for index in indices])
        for index, row in zip(indices, rows, strict=True):
            results[index] = row
        done += len(indices)
        if on_rows is not None:
            on_rows(done, len(results))
    return results


def fastest_attention(device: torch.device) -> AbstractContextManager[None]:
    """Written out on the CPU, where the fused kernel's backward pass takes a third of a step at these lengths."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


def batches(lengths: Indices, indices: Indices, size: int) -> list[Indices]:
    """The indices in batches of similar lengths."""
    in_order = indices[np.argsort(lengths[indices], kind="stable")]
    return [in_order[start : start + size] for start in range(0, len(in_order), size)]


def shuffled_batches(lengths: Indices, size: int, rng: np.random.Generator) -> list[Indices]:
    """Random batches of similar lengths: shuffled pools, sorted inside, batches shuffled again."""
    shuffled, pool_size = rng.permutation(len(lengths)), _POOLED_BATCHES * size
    pools = [shuffled[start : start + pool_size] for start in range(0, len(shuffled), pool_size)]
    pooled = [batch for pool in pools for batch in batches(lengths, pool, size)]
    return [pooled[index] for index in rng.permutation(len(pooled))]
