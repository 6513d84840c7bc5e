"""Every way to ask that a token stands before, over both protocols, and what is told."""

from __future__ import annotations

import http.client
import json
import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from bench.kit.doors.tenants import Shown
from builder.export.model_names import ENSEMBLE, LOWER
from builder.serving import TritonServer

_TIMEOUT_S = 30.0
HIDDEN_ROWS = "hidden rows"
"""What an answer of `hplm_lower` is called, which names no hPLM."""


@dataclass(frozen=True)
class Told:
    """What a caller was told: the names of the hPLMs that answered, or the words of an error."""

    hplms: Sequence[str] = ()
    words: str = ""

    @property
    def is_answer(self) -> bool:
        return not self.words


@dataclass(frozen=True)
class Call:
    """One way to ask; `rows` are names of a tenant's hPLMs and texts."""

    name: str
    rows: Sequence[tuple[str, str]]
    via: str = "infer"
    model: str = ENSEMBLE
    level: str | None = None

    def of(self, tenant: str) -> list[tuple[str, str]]:
        return [(f"{tenant}/{name}", text) for name, text in self.rows]


_TOPIC, _PAIR, _TAGS = ("topic", "my cat is lovely"), ("pair", "a dog\ta splendid day"), ("tags", "a cat and a hammer")
_OF_BOTH = (
    Call("infer", [_TOPIC]),
    Call("pairs", [_PAIR]),
    Call("entities", [_TAGS]),
    Call("rows of several hPLMs", [_TOPIC, _PAIR, _TAGS, _TOPIC]),
    Call("level full", [_TOPIC], level="full"),
    Call("hplm_lower directly", [_TOPIC], model=LOWER),
)
CALLS: Mapping[str, Sequence[Call]] = {
    "gRPC": (*_OF_BOTH, Call("stream", [_TOPIC], via="stream")),
    "HTTP": (
        *_OF_BOTH,
        Call("generate", [_TOPIC], via="generate"),
        Call("generate_stream", [_TAGS], via="generate_stream"),
    ),
}


def parameters_of(call: Call, shown: Shown) -> dict[str, str]:
    """A second token, which gRPC cannot name twice, stands behind the first one there."""
    token = shown.token if shown.again is None else f"{shown.token},{shown.again}"
    pairs = (("tenant_token", token), ("level", call.level))
    return {name: value for name, value in pairs if value is not None}


class GrpcCaller:
    def __init__(self, server: TritonServer) -> None:
        self._client = triton.InferenceServerClient(server.grpc_url)
        self._streamed: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._streamed.put((result, error)))

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()

    def ask(self, call: Call, tenant: str, shown: Shown) -> Told:
        inputs, parameters = _grpc_inputs(call.of(tenant)), parameters_of(call, shown)
        try:
            if call.via == "stream":
                self._client.async_stream_infer(call.model, inputs, parameters=parameters)
                result, error = self._streamed.get(timeout=_TIMEOUT_S)
                if error is not None:
                    raise error
            else:
                result = self._client.infer(call.model, inputs, parameters=parameters)
        except InferenceServerException as error:
            return Told(words=_of_error(str(error.message())))
        return _answer(result)


def _answer(result: Any) -> Told:
    answers = result.as_numpy("RESULT")
    if answers is None:
        return Told([f"{HIDDEN_ROWS} {result.as_numpy('HIDDEN').shape}"])
    return Told([json.loads(one)["hplm"] for one in answers.reshape(-1)])


def _grpc_inputs(rows: Sequence[tuple[str, str]]) -> list[Any]:
    inputs = []
    for name, column in zip(("MODEL", "TEXT"), zip(*rows, strict=True), strict=True):
        inputs.append(triton.InferInput(name, [len(rows), 1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([[value.encode()] for value in column], np.object_))
    return inputs


class HttpCaller:
    """Writes bodies by hand, so that a parameter can be given twice.

    Of `hplm_lower` it wants the ticket, because hidden rows cannot be told in JSON.
    """

    def __init__(self, server: TritonServer) -> None:
        self._connection = http.client.HTTPConnection(server.http_url, timeout=_TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()

    def ask(self, call: Call, tenant: str, shown: Shown) -> Told:
        rows, parameters, path = call.of(tenant), _http_parameters(call, shown), f"/v2/models/{call.model}/{call.via}"
        if call.via == "infer":
            body = _infer_body(rows, parameters, "TICKET" if call.model == LOWER else "RESULT")
        else:
            body = _generate_body(rows, parameters)
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        reply = self._connection.getresponse()
        content = reply.read().decode(errors="replace")
        return _http_told(content.removeprefix("data:").strip())


def _http_told(content: str) -> Told:
    told = json.loads(content)
    if "error" in told:
        return Told(words=_of_error(told["error"]))
    if "outputs" not in told:
        return Told([json.loads(told["RESULT"])["hplm"]])
    outputs = {output["name"]: output for output in told["outputs"]}
    if "TICKET" in outputs:
        return Told([f"{HIDDEN_ROWS} of a ticket"])
    return Told([json.loads(one)["hplm"] for one in outputs["RESULT"]["data"]])


def _http_parameters(call: Call, shown: Shown) -> list[str]:
    """As pieces of JSON."""
    pairs = [("tenant_token", shown.token), ("tenant_token", shown.again), ("level", call.level)]
    return [f'"{name}": {json.dumps(value)}' for name, value in pairs if value is not None]


def _infer_body(rows: Sequence[tuple[str, str]], parameters: Sequence[str], wanted: str) -> str:
    columns = zip(("MODEL", "TEXT"), zip(*rows, strict=True), strict=True)
    inputs = [{"name": name, "shape": [len(rows), 1], "datatype": "BYTES", "data": data} for name, data in columns]
    tensors = f'"inputs": {json.dumps(inputs)}, "outputs": {json.dumps([{"name": wanted}])}'
    return f'{{"parameters": {{{", ".join(parameters)}}}, {tensors}}}'


def _generate_body(rows: Sequence[tuple[str, str]], parameters: Sequence[str]) -> str:
    ((hplm, text),) = rows
    return "{" + ", ".join([f'"MODEL": {json.dumps(hplm)}', f'"TEXT": {json.dumps(text)}', *parameters]) + "}"


def _of_error(message: str) -> str:
    """The words of the models, without Triton's about which of them failed."""
    return message.rpartition("ensemble 'hplm', ")[2] or "an error without words"


CALLERS: Mapping[str, Callable[[TritonServer], GrpcCaller | HttpCaller]] = {"gRPC": GrpcCaller, "HTTP": HttpCaller}
