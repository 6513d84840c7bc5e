"""What travels from one stage of the upper layers to the next, where each is a Triton model.

STATES are the rows between two layers, folded as HIDDEN is, in fp32: exact whatever the layers compute in. MATES says
of each row what `Mates` says. TICKET and WORDS come from `hplm_lower` to every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from backends.errors import InvalidArgumentError
from backends.wire import Int64Array

STATES, MATES = "STATES", "MATES"


class Mates(NamedTuple):
    """Which batch a row was in, by the stage's own number, how many rows that had, and the layers behind them."""

    batch: int
    rows: int
    layers: int


def encode_mates(rows: Sequence[Mates]) -> Int64Array:
    """Shape: `[B, 3]`."""
    return np.array(rows, np.int64).reshape(len(rows), len(Mates._fields))


def decode_mates(rows: Int64Array, num_rows: int) -> list[Mates]:
    """Decode what `encode_mates` made of so many rows.

    Raises:
        InvalidArgumentError: It is of another shape.
    """
    if rows.dtype != np.int64 or rows.shape != (num_rows, len(Mates._fields)):
        raise InvalidArgumentError(
            f"{MATES} is of {rows.dtype} and shape {list(rows.shape)}, not of int64 and "
            f"[{num_rows}, {len(Mates._fields)}]"
        )
    return [Mates(*row) for row in rows.tolist()]
