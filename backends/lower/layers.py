"""The lower layers at work: fragments → vectors, for tables and for what tables lack."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import xxhash

from backends.lower.encoder import MANIFEST_NAME, domain_encoder, has_own_layers
from backends.plot.arrays import Float16Array, Keys
from backends.plot.header import Store, stores_of
from backends.plot.overlay_log import FragmentLayout, LogOrigin
from backends.root.lower import FragmentEncoder
from backends.root.store import RootFolder

_OWN_LAYERS_KEPT = 8
# More at once would not be faster, only larger.
_FRAGMENTS_AT_ONCE = 1024


@torch.inference_mode()
def fragment_values(encoder: FragmentEncoder, store: Store, keys: Keys) -> Float16Array:
    """The gated states of a store's fragments.

    Shape: keys [K] -> [K, vectors, H]
    """
    first_slot = store.slots(encoder.slot_embeddings.num_embeddings).start
    gated = encoder(torch.from_numpy(np.ascontiguousarray(store.ids(keys))), first_slot=first_slot)
    values: Float16Array = gated.to(torch.float16).numpy()
    return values


class LowerLayers:
    """The encoders of one root's domains, read when they are first needed; of domains' own ones a few are kept."""

    def __init__(self, root: RootFolder) -> None:
        self._root = root
        self._own: OrderedDict[Path, FragmentEncoder] = OrderedDict()
        self._own_lock = threading.Lock()
        self._store = stores_of(root.geometry.n)[0]
        self.layout = FragmentLayout(root.geometry.n, root.geometry.n * root.geometry.hidden_size)

    @cached_property
    def of_root(self) -> FragmentEncoder:
        return self._root.lower()

    def prepare(self, folders: Sequence[Path]) -> None:
        """Read now what `compute` would read first, while there is room for it."""
        if _owner(folders) is None or len(self._own) < _OWN_LAYERS_KEPT:
            self._encoder(folders)

    def compute(self, folders: Sequence[Path], keys: Keys) -> Float16Array:
        """Vectors of whole fragments, as the table of a domain with these folders would hold them.

        Shape: keys [K] -> [K, n * H]
        """
        encoder = self._encoder(folders)
        starts = range(0, keys.size, _FRAGMENTS_AT_ONCE)
        parts = [fragment_values(encoder, self._store, keys[start : start + _FRAGMENTS_AT_ONCE]) for start in starts]
        return np.concatenate(parts).reshape(keys.size, -1)

    def origin(self, folders: Sequence[Path]) -> LogOrigin:
        """Names the layers that `compute` uses: those of two versions are the same where this is the same."""
        owner = _owner(folders)
        manifest = (owner / MANIFEST_NAME).read_bytes() if owner else b""
        return LogOrigin(xxhash.xxh3_128_hexdigest(self._root.fingerprint.encode() + manifest), self.layout)

    def _encoder(self, folders: Sequence[Path]) -> FragmentEncoder:
        owner = _owner(folders)
        if owner is None:
            return self.of_root
        with self._own_lock:
            if owner not in self._own:
                self._own[owner] = domain_encoder(self._root, [owner], self.of_root)
                if len(self._own) > _OWN_LAYERS_KEPT:
                    self._own.popitem(last=False)
            self._own.move_to_end(owner)
            return self._own[owner]


def _owner(folders: Sequence[Path]) -> Path | None:
    return next((folder for folder in folders if has_own_layers(folder)), None)
