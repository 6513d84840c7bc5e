"""Requests whose last string promises more bytes than there are, sent amid good ones.

Triton's core takes them for whole. The Python backend would fail the whole batch that they are in, and may answer one
never; the batching plugin cuts them before.
"""

from __future__ import annotations

import os
import random
import re
import signal
import struct
import time
from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from seeds import SEED

_GOOD = ("acme/topic", "cat")
_REASON = re.compile("shorter than its length says|TEXT is empty")


def check_damaged_fail_alone(grpc_url: str, model: str, num_each: int = 300) -> None:
    """Send good ones to `hplm` and damaged ones to a model, all at once; only these fail, and each says why."""
    rng = random.Random(SEED)
    damaged = _damaged(model)
    requests = [(False, _good())] * num_each + [(True, rng.choice(damaged)) for _ in range(num_each)]
    rng.shuffle(requests)
    with grpc.insecure_channel(grpc_url) as channel:
        _check([_send(channel, request) for _, request in requests], [is_damaged for is_damaged, _ in requests])


def check_damaged_fail_alone_in_order(grpc_url: str, order: str, pause_s: float, process: int) -> None:
    """Stop a process that takes batches while good (g) and damaged (d) requests come, one after the other.

    Batches then wait in front of it, and Triton lets them grow.
    """
    damaged = _damaged("hplm_lower")
    sent = []
    with grpc.insecure_channel(grpc_url) as channel:
        os.kill(process, signal.SIGSTOP)
        try:
            for index, kind in enumerate(order):
                sent.append(_send(channel, damaged[index % len(damaged)] if kind == "d" else _good()))
                time.sleep(pause_s)
        finally:
            os.kill(process, signal.SIGCONT)
        _check(sent, [kind == "d" for kind in order])


def _send(channel: grpc.Channel, request: ModelInferRequest) -> Any:
    return GRPCInferenceServiceStub(channel).ModelInfer.future(request, timeout=60)


def _check(sent: Sequence[Any], is_damaged: Sequence[bool]) -> None:
    errors = [None if one.exception() is None else str(one.details()) for one in sent]
    failed = [error for error, damaged in zip(errors, is_damaged, strict=True) if error is not None and not damaged]
    assert not failed, f"{len(failed)} good requests failed: {failed[0]}"
    reported = [error for error, damaged in zip(errors, is_damaged, strict=True) if damaged]
    assert all(one is not None and _REASON.search(one) and "\n" not in one for one in reported), set(reported)


def _good() -> ModelInferRequest:
    return _of_rows("hplm", [[value.encode()] for value in _GOOD])


def _damaged(model: str) -> list[ModelInferRequest]:
    """Damage the text or the name, of one row and of three; of one text nothing is left."""
    requests = []
    for num_rows, column, more, kept in (
        (1, 1, 997, None),
        (3, 1, 1, None),
        (1, 0, 0xFFFFFF00, None),
        (3, 0, 1, None),
        (2, 1, 1, 0),
    ):
        request = _of_rows(model, [[value.encode()] * num_rows for value in _GOOD])
        last, whole = _GOOD[column].encode(), request.raw_input_contents[column]
        left = last[:kept]
        request.raw_input_contents[column] = whole[: -len(last) - 4] + struct.pack("<I", len(last) + more) + left
        requests.append(request)
    return requests


def _of_rows(model: str, columns: list[list[bytes]]) -> ModelInferRequest:
    request = ModelInferRequest(model_name=model)
    for name, values in zip(("MODEL", "TEXT"), columns, strict=True):
        request.inputs.add(name=name, datatype="BYTES", shape=[len(values), 1])
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(value)) + value for value in values))
    return request
