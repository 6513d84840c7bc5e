"""The smoothing of products in int8: what their inputs are divided by, and their weights multiplied with.

A channel that is much larger than the others takes the levels from them; half of its size goes to the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from backends.errors import CorruptFileError
from backends.root.encoder import EncoderLayer
from backends.root.int8_file import SMOOTHED, Smoothed, Smoothing

_MOST = 64.0
_TINY = 1e-6


def smoothing_by(layers: Iterable[nn.Module], run: Callable[[], object], what: str) -> Smoothing:
    """Balance the size of each channel between a product's inputs and its weights.

    Semantics:
        smoothing = sqrt(largest input / largest weight) of each channel, 1 in the geometric mean

    Args:
        layers: Layers whose products are smoothed.
        run: Runs them over the states that are typical.
        what: Names them in an error.

    Raises:
        CorruptFileError: The states are NaN or infinite.
    """
    largest: dict[tuple[int, Smoothed], Tensor] = {}

    def note(key: tuple[int, Smoothed]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def record(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sizes = inputs[0].flatten(0, -2).abs().amax(dim=0)
            largest[key] = torch.maximum(largest.get(key, sizes), sizes)

        return record

    linears = {
        (layer.index, product): layer.get_submodule(product)
        for layer in layers
        if isinstance(layer, EncoderLayer)
        for product in SMOOTHED
    }
    hooks = [linear.register_forward_pre_hook(note(key)) for key, linear in linears.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    if not all(bool(sizes.isfinite().all()) for sizes in largest.values()):
        raise CorruptFileError(f"the states of {what} are NaN or infinite")
    return {key: _balanced(sizes, linears[key].get_parameter("weight")) for key, sizes in largest.items()}


def _balanced(inputs: Tensor, weight: Tensor) -> Tensor:
    """Compute the smoothing of one product.

    Shape: inputs `[H]`, weight `[out, H]` → `[H]`
    """
    ratio = (inputs.clamp_min(_TINY) / weight.abs().amax(dim=0).clamp_min(_TINY)).sqrt()
    return (ratio / ratio.log().mean().exp()).clamp(1 / _MOST, _MOST)
