"""What travels between the client, `hplm_lower` and `hplm_upper`: tensor names, the ticket, the folded hidden rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidArgumentError, shown

MODEL, TEXT, HIDDEN, TICKET, RESULT = "MODEL", "TEXT", "HIDDEN", "TICKET", "RESULT"
REQUEST_PARAMETERS = ("deadline_ms", "tenant_token", "level")
LEVELS = ("full",)
_NO_DEADLINE = 0
_MAX_DEADLINE_MS = 24 * 3600 * 1000

Half = npt.NDArray[np.float16]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ticket:
    """What the upper half must know of a row.

    `hplm_key` names the hPLM version that the row started with; `deadline_us` is on the machine's monotonic clock.
    """

    hplm_key: int
    num_tokens: int
    truncated: bool
    deadline_us: int | None


def encode_tickets(tickets: Sequence[Ticket]) -> Int64:
    """Tickets → `[B, 4]`."""
    rows = [(t.hplm_key, t.num_tokens, int(t.truncated), t.deadline_us or _NO_DEADLINE) for t in tickets]
    return np.array(rows, np.int64).reshape(len(tickets), 4)


def decode_tickets(rows: Int64) -> list[Ticket]:
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise InvalidArgumentError(f"{TICKET} has shape {list(rows.shape)}, not [batch, 4]")
    return [Ticket(key, tokens, bool(cut), deadline or None) for key, tokens, cut, deadline in rows.tolist()]


def fold_rows(rows: Sequence[Half]) -> Half:
    """Rows of any lengths → one tensor whose first dimension is the batch, as Triton wants it, without padding rows.

    Semantics:
        The rows lie end to end; the flat array is cut into B equal parts, the last filled up with zeros.
    Shape:
        B rows `[L_b, H]` → `[B, ceil(ΣL / B), H]`.
    """
    total = sum(len(row) for row in rows)
    per_part = -(-total // len(rows))
    folded = np.zeros((len(rows) * per_part, rows[0].shape[1]), np.float16)
    np.concatenate(rows, out=folded[:total])
    return folded.reshape(len(rows), per_part, -1)


def unfold_rows(folded: Half, lengths: Sequence[int]) -> list[Half]:
    """The inverse of `fold_rows`; the rows are views."""
    flat = folded.reshape(-1, folded.shape[-1])
    if sum(lengths) > len(flat):
        raise InvalidArgumentError(f"{HIDDEN} holds {len(flat)} tokens where its tickets promise {sum(lengths)}")
    ends = np.cumsum(lengths)
    return [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def parse_parameters(text: str) -> dict[str, Any]:
    """The request parameters, checked: an unknown one is an error, because a misspelt deadline must not be ignored."""
    parameters: dict[str, Any] = json.loads(text) if text else {}
    if unknown := set(parameters) - set(REQUEST_PARAMETERS):
        raise InvalidArgumentError(
            f"unknown request parameter {shown(sorted(unknown)[0])}; known are {', '.join(REQUEST_PARAMETERS)}"
        )
    if parameters.get("level", LEVELS[0]) not in LEVELS:
        raise InvalidArgumentError(f"level {shown(str(parameters['level']))} is not one of {', '.join(LEVELS)}")
    return parameters


def deadline_us(parameters: dict[str, Any], now_us: int) -> int | None:
    """The absolute deadline of a request that arrived at `now_us`."""
    value = parameters.get("deadline_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_DEADLINE_MS:
        limits = f"a whole number from 1 to {_MAX_DEADLINE_MS}"
        raise InvalidArgumentError(f"deadline_ms must be {limits}, not {shown(str(value))}")
    return now_us + 1000 * value
