"""Tables whose vectors say nothing, for benches of time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backends.plot import Store, TableSpec, TableWriter


def write_table(
    folder: Path, spec: TableSpec, keys: Mapping[Store, npt.NDArray[np.uint64]], block: npt.NDArray[np.float16]
) -> None:
    """Write and publish a table; entries get the vectors of `block`, which is as long as what is appended at once."""
    size = len(block)
    with TableWriter(folder, spec) as writer:
        for store, of_store in keys.items():
            for start in range(0, of_store.size, size):
                part = of_store[start : start + size]
                writer.append(store, part, block[: part.size, : store.vectors])
        writer.finish()
