"""The wire contract: one call to the ensemble and the tensors that carry it, the same for all transports."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hplm_client.errors import ServerError

MODEL_NAME = "hplm"


@dataclass(frozen=True)
class Call:
    """One Triton request: rows that all name one hPLM and share all parameters."""

    hplm: str
    texts: tuple[bytes, ...]
    parameters: Mapping[str, str | int]
    request_id: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Let a gateway route by hPLM and log the ID; the server itself reads the MODEL tensor and Triton's own ID."""
        return {"x-hplm": self.hplm, **({"x-request-id": self.request_id} if self.request_id else {})}


def inputs_of(call: Call, infer_input: Any) -> list[Any]:
    """The input tensors; `infer_input` is the InferInput class of the transport."""
    models = [call.hplm.encode()] * len(call.texts)
    return [_bytes_tensor(infer_input, "MODEL", models), _bytes_tensor(infer_input, "TEXT", list(call.texts))]


def rows_of(result: Any, call: Call) -> list[bytes]:
    """The rows of RESULT, one for each row of the call."""
    try:
        rows = result.as_numpy("RESULT")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ServerError("the server's answer holds no readable RESULT tensor") from error
    if rows is None or rows.size != len(call.texts):
        raise ServerError(f"the server answered {0 if rows is None else rows.size} of {len(call.texts)} rows")
    try:
        return [_as_bytes(row) for row in rows.reshape(-1)]
    except (ValueError, TypeError) as error:
        raise ServerError("the server's answer holds rows that are no texts") from error


def _bytes_tensor(infer_input: Any, name: str, rows: list[bytes]) -> Any:
    tensor = infer_input(name, [len(rows), 1], "BYTES")
    tensor.set_data_from_numpy(np.array(rows, dtype=np.object_).reshape(-1, 1))
    return tensor


def _as_bytes(row: bytes | str) -> bytes:
    """A gateway may turn binary HTTP answers into JSON ones, whose rows are strings."""
    if isinstance(row, str):
        return row.encode()
    if not isinstance(row, bytes):
        raise TypeError("no bytes")
    return row
