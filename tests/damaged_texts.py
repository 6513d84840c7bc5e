"""Requests whose last string promises more bytes than there are, sent amid good ones.

Triton's core takes them for whole. The Python backend finds them, and fails the whole batch that they are in.
"""

from __future__ import annotations

import random
import struct

import grpc
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from seeds import SEED

_GOOD = ("acme/topic", "cat")


def check_damaged_fail_alone(grpc_url: str, model: str, num_each: int = 300) -> None:
    """Send good ones to `hplm` and damaged ones to a model, all at once; only these fail, and each says why."""
    chance = random.Random(SEED)
    good, damaged = _of_rows("hplm", [[value.encode()] for value in _GOOD]), _damaged(model)
    requests = [(False, good)] * num_each + [(True, chance.choice(damaged)) for _ in range(num_each)]
    chance.shuffle(requests)
    with grpc.insecure_channel(grpc_url) as channel:
        stub = GRPCInferenceServiceStub(channel)
        sent = [(is_damaged, stub.ModelInfer.future(request, timeout=60)) for is_damaged, request in requests]
        failed = [str(one.details()) for is_damaged, one in sent if not is_damaged and one.exception() is not None]
        told = [one.details() for is_damaged, one in sent if is_damaged and one.exception() is not None]
    assert not failed, f"{len(failed)} good requests failed: {failed[0]}"
    assert len(told) == num_each, "a damaged request was answered"
    assert all("incomplete string" in one and "\n" not in one for one in told), set(told)


def _damaged(model: str) -> list[ModelInferRequest]:
    """Damage the text or the name, of one row and of three."""
    requests = []
    for num_rows, place, more in ((1, 1, 997), (3, 1, 1), (1, 0, 0xFFFFFF00), (3, 0, 1)):
        request = _of_rows(model, [[value.encode()] * num_rows for value in _GOOD])
        last, whole = _GOOD[place].encode(), request.raw_input_contents[place]
        request.raw_input_contents[place] = whole[: -len(last) - 4] + struct.pack("<I", len(last) + more) + last
        requests.append(request)
    return requests


def _of_rows(model: str, columns: list[list[bytes]]) -> ModelInferRequest:
    request = ModelInferRequest(model_name=model)
    for name, values in zip(("MODEL", "TEXT"), columns, strict=True):
        request.inputs.add(name=name, datatype="BYTES", shape=[len(values), 1])
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(value)) + value for value in values))
    return request
