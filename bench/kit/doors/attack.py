"""Calls of bad tickets, straight to `hplm_upper`, as a load in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from backends.wire import HIDDEN, RESULT, TICKET, WORDS, Float16Array, Int64Array, fold_words
from bench.kit.stock_client import Replies, StockClient
from builder.export.model_names import LOWER, UPPER


@dataclass(frozen=True, eq=False)
class TicketCall:
    """Rows of tickets that are sent together, at a time from the beginning of the load."""

    at_s: float
    tickets: Int64Array


def send_tickets(url: str, begins_at: float, calls: Sequence[TicketCall], row: Float16Array) -> Replies:
    """Open loop; each ticket comes with the hidden rows of a real one.

    Shape:
        row: `[T, H]`.
    """
    client = StockClient(url)
    client.begin(begins_at)
    for call in calls:
        time.sleep(max(0.0, call.at_s - client.now_s))
        client.infer(UPPER, upper_inputs(call.tickets, row))
    return client.replies()


def upper_inputs(tickets: Int64Array, row: Float16Array) -> list[Any]:
    hidden = np.broadcast_to(row, (len(tickets), *row.shape))
    words = fold_words([b""] * len(tickets))
    tensors = ((HIDDEN, "FP16", np.ascontiguousarray(hidden)), (TICKET, "INT64", tickets), (WORDS, "UINT8", words))
    inputs = []
    for name, datatype, value in tensors:
        inputs.append(triton.InferInput(name, list(value.shape), datatype))
        inputs[-1].set_data_from_numpy(value)
    return inputs


class InnerModels:
    """Asks `hplm_lower` and `hplm_upper` one by one, as callers could who reach the port."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)

    def lower(self, hplm: str, text: str, parameters: dict[str, Any] | None = None) -> tuple[Float16Array, Int64Array]:
        """Return the hidden rows `[T, H]` of a text, and its ticket `[1, columns]`."""
        inputs = []
        for name, value in (("MODEL", hplm), ("TEXT", text)):
            inputs.append(triton.InferInput(name, [1, 1], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array([[value.encode()]], np.object_))
        told = self._client.infer(LOWER, inputs, parameters=parameters)
        return told.as_numpy(HIDDEN)[0], told.as_numpy(TICKET)

    def upper(self, ticket: Int64Array, row: Float16Array) -> bytes:
        """Return the answer; raises InferenceServerException."""
        answer = self._client.infer(UPPER, upper_inputs(ticket, row)).as_numpy(RESULT)
        return bytes(answer.reshape(-1)[0])
