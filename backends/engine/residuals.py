"""Where a layer adds its residuals."""

from __future__ import annotations

from torch import Tensor

from backends.adapters.product import BatchLayer
from backends.root.encoder import Site


def residual_of(adapter: BatchLayer, site: Site, residual: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the residual for inside the product in front, where it is free, or for after it if a part needs it."""
    return (None, residual) if adapter.reads_states(site) else (residual, None)
