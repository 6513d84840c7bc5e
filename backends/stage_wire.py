"""What travels from one stage of the upper layers to the next, where each is a Triton model.

STATES are the rows between two layers, folded as HIDDEN is, in fp32: exact whatever the layers compute in. MATES says
of each row what `Mates` says, sealed with the row's ticket. TICKET and WORDS come from `hplm_lower` to every stage.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from backends.clock import now_us
from backends.errors import InvalidArgumentError
from backends.seal import OWN_SEAL, SEAL_BYTES, Seal
from backends.wire import Int64Array

STATES, MATES = "STATES", "MATES"
MATES_COLUMNS = ("batch", "rows", "layers", "signed_us", "seal_low", "seal_high")
"""The columns of the tensor MATES, in order. The seal is of the row's ticket and of all columns before it."""
_SEALED = struct.Struct("=4q")


class Mates(NamedTuple):
    """Which batch a row was in, by the stage's own number, how many rows that had, and the layers behind them."""

    batch: int
    rows: int
    layers: int


def encode_mates(rows: Sequence[Mates], tickets: Int64Array, seal: Seal = OWN_SEAL) -> Int64Array:
    """Seal the mates of rows, now, with their tickets.

    Shape:
        `[B, len(MATES_COLUMNS)]`.
    """
    content, signed_us = bytearray(), now_us()
    for row, ticket in zip(rows, tickets, strict=True):
        sealed = _SEALED.pack(*row, signed_us)
        content += sealed + seal.of(sealed + ticket.tobytes())
    return np.frombuffer(content, np.int64).reshape(len(rows), len(MATES_COLUMNS))


class SealedMates(NamedTuple):
    """A row's mates, and when they were sealed."""

    mates: Mates
    signed_us: int


def decode_mates(rows: Int64Array, tickets: Int64Array, seal: Seal = OWN_SEAL) -> list[SealedMates]:
    """Decode what `encode_mates` made with the same seal, of rows with these tickets.

    Raises:
        InvalidArgumentError: It is of another shape, or was made or changed elsewhere.
    """
    shape = (len(tickets), len(MATES_COLUMNS))
    if rows.dtype != np.int64 or rows.shape != shape:
        raise InvalidArgumentError(
            f"{MATES} is of {rows.dtype} and shape {list(rows.shape)}, not of int64 and {list(shape)}"
        )
    return [_unsealed(row.tobytes(), ticket.tobytes(), seal) for row, ticket in zip(rows, tickets, strict=True)]


def _unsealed(row: bytes, ticket: bytes, seal: Seal) -> SealedMates:
    sealed = row[: _SEALED.size]
    if not seal.is_of(sealed + ticket, row[_SEALED.size : _SEALED.size + SEAL_BYTES]):
        raise InvalidArgumentError(f"{MATES} was not made by this server; ask model hplm")
    batch, num_rows, layers, signed_us = _SEALED.unpack(sealed)
    return SealedMates(Mates(batch, num_rows, layers), signed_us)
