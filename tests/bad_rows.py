"""Requests that no lower half would send, amid whole ones, straight to `hplm_upper`."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import tritonclient.grpc

from backends.wire import TICKET_COLUMNS, fold_words


def check_bad_rows_fail_alone(grpc_url: str) -> None:
    """Only requests whose tickets have a wrong width hear of it."""
    client = tritonclient.grpc.InferenceServerClient(grpc_url)
    pending: list[Future[Any]] = []
    columns = len(TICKET_COLUMNS)
    for width in (columns, columns - 1, columns, columns + 1):
        tensors = []
        hidden, tickets = np.zeros((1, 2, 64), np.float16), np.full((1, width), 1, np.int64)
        for name, value, datatype in (("HIDDEN", hidden, "FP16"), ("TICKET", tickets, "INT64")):
            tensor = tritonclient.grpc.InferInput(name, list(value.shape), datatype)
            tensor.set_data_from_numpy(value)
            tensors.append(tensor)
        words = tritonclient.grpc.InferInput("WORDS", [1, 4], "UINT8")
        words.set_data_from_numpy(fold_words([b""]))
        future: Future[Any] = Future()
        pending.append(future)
        client.async_infer(
            "hplm_upper",
            [*tensors, words],
            lambda result, error, future=future: future.set_result(error or result),
        )
    errors = [str(future.result(timeout=60)) for future in pending]
    assert all("TICKET is of int64 and shape [1, " in errors[place] for place in (1, 3))
    assert not any("TICKET is of" in errors[place] for place in (0, 2))
