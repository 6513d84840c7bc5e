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
from torch import nn

from backends.errors import CorruptFileError
from backends.lower.encoder import MANIFEST_NAME, domain_encoder, has_own_layers
from backends.lower.fragments import ComputesFragments, fragment_computer, rounding_of
from backends.lower.settings import LowerDtype
from backends.plot.arrays import Float16Array, Keys
from backends.plot.header import Store, stores_of
from backends.plot.overlay_log import FragmentLayout, LogOrigin
from backends.root.lower import FragmentEncoder
from backends.root.store import RootFolder

_OWN_LAYERS_KEPT = 8


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
    """The lower layers of one root's domains, read when they are first needed; of domains' own ones a few are kept.

    All share the root's word embeddings, the largest part of them, as they are stored.
    """

    def __init__(self, root: RootFolder, dtype: LowerDtype = "bf16") -> None:
        self._root = root
        self._dtype: LowerDtype = dtype
        self._own: OrderedDict[Path, ComputesFragments] = OrderedDict()
        self._own_lock = threading.Lock()
        self._word_embeddings: nn.Parameter | None = None
        self._store = stores_of(root.geometry.n)[0]
        self.layout = FragmentLayout(root.geometry.n, root.geometry.n * root.geometry.hidden_size)

    @cached_property
    def of_root(self) -> ComputesFragments:
        return self._computer([])

    def prepare(self, folders: Sequence[Path]) -> None:
        """Read now what `compute` would read first, while there is room for it."""
        if layers_folder(folders) is None or len(self._own) < _OWN_LAYERS_KEPT:
            self._of(folders)

    def compute(self, folders: Sequence[Path], keys: Keys) -> Float16Array:
        """Vectors of whole fragments, rounded as the table of a domain with these folders would hold them.

        Shape: keys [K] -> [K, n * H]
        """
        vectors: Float16Array = self._of(folders)(torch.from_numpy(self._store.ids(keys))).numpy()
        return vectors.reshape(keys.size, -1)

    def origin(self, folders: Sequence[Path]) -> LogOrigin:
        """Names the layers that `compute` uses, and how int8 rounds what they multiply.

        Where two have the same name, the vectors of one serve the other, as those in bf16 serve fp32.
        """
        owner = layers_folder(folders)
        manifest = (owner / MANIFEST_NAME).read_bytes() if owner else b""
        named = self._root.fingerprint.encode() + manifest + rounding_of(self._dtype).encode()
        return LogOrigin(xxhash.xxh3_128_hexdigest(named), self.layout)

    def _of(self, folders: Sequence[Path]) -> ComputesFragments:
        owner = layers_folder(folders)
        if owner is None:
            return self.of_root
        with self._own_lock:
            if owner not in self._own:
                self._own[owner] = self._computer([owner])
                if len(self._own) > _OWN_LAYERS_KEPT:
                    self._own.popitem(last=False)
            self._own.move_to_end(owner)
            return self._own[owner]

    def _computer(self, folders: Sequence[Path]) -> ComputesFragments:
        encoder = domain_encoder(self._root, folders)
        if self._word_embeddings is None:
            self._word_embeddings = nn.Parameter(encoder.word_embeddings.weight.half(), requires_grad=False)
        encoder.word_embeddings.weight = self._word_embeddings
        try:
            return fragment_computer(encoder, self._root.geometry, self._dtype)
        except CorruptFileError as error:
            raise CorruptFileError(f"{layers_folder(folders) or self._root.path}: {error}") from error


def layers_folder(folders: Sequence[Path]) -> Path | None:
    """The nearest folder of a domain's chain with lower layers of its own; None where the root's compute."""
    return next((folder for folder in folders if has_own_layers(folder)), None)
