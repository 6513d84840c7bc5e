"""Lower states that nothing shortens: what no table holds is computed as a server computes it, however much that is."""

from __future__ import annotations

import numpy as np

from backends.home import Home
from backends.lower.layers import LowerLayers
from backends.lower.model import LowerModel
from backends.lower.settings import LowerDtype
from backends.plot.arrays import Keys
from backends.plot.askers import SEVERAL, Fetched
from backends.registry.entries import DomainEntry
from backends.root.store import RootFolder


class ComputedFragments:
    """The supplier of a domain version that has every whole fragment, as `--missing compute` has without a limit."""

    name = "computed"

    def __init__(self, home: Home, domain: DomainEntry, dtype: LowerDtype = "bf16") -> None:
        self._layers = LowerLayers(RootFolder(home.root(domain.root)), dtype)
        self._folders = [home.path / folder for folder in domain.folders]

    @property
    def identity(self) -> str:
        """Names the layers that compute."""
        return self._layers.origin(self._folders).identity

    def fetch(self, keys: Keys) -> Fetched:
        distinct, inverse = np.unique(keys, return_inverse=True)
        vectors, found = self._layers.compute(self._folders, distinct)[inverse], np.ones(keys.size, np.bool_)
        return Fetched(vectors, found, np.full(keys.size, SEVERAL, np.uint32))


def exact_lower(home: Home, domain: DomainEntry, dtype: LowerDtype = "bf16") -> LowerModel:
    """A domain's lower model with nothing approximated."""
    return LowerModel.open(home, domain, suppliers=[ComputedFragments(home, domain, dtype)])
