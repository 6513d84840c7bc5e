"""Triton's own endpoints: the administrative ones need a key, those that stock clients read name no tenant."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from builder.export.model_names import ENSEMBLE, LOWER, UPPER
from builder.serving import TritonServer

Call = Callable[[Any, Mapping[str, str] | None], Any]
ADMINISTRATIVE: Mapping[str, Sequence[Call]] = {
    "shared-memory": [
        lambda client, headers: client.get_system_shared_memory_status(headers=headers),
        lambda client, headers: client.register_system_shared_memory("x", "/x", 64, headers=headers),
        lambda client, headers: client.get_cuda_shared_memory_status(headers=headers),
        lambda client, headers: client.unregister_system_shared_memory(headers=headers),
    ],
    "model-repository": [
        lambda client, headers: client.get_model_repository_index(headers=headers),
        lambda client, headers: client.load_model("hplm", headers=headers),
        lambda client, headers: client.unload_model("hplm", headers=headers),
    ],
    "trace": [
        lambda client, headers: client.get_trace_settings(headers=headers),
        lambda client, headers: client.update_trace_settings("hplm", {"trace_level": ["TENSORS"]}, headers=headers),
    ],
    "logging": [
        lambda client, headers: client.get_log_settings(headers=headers),
        lambda client, headers: client.update_log_settings({"log_verbose_level": 2}, headers=headers),
    ],
}
"""Calls by the group of endpoints; the first of each only reads."""
_MODELS = (ENSEMBLE, LOWER, UPPER)


def stock_clients(server: TritonServer) -> dict[str, Any]:
    return {
        "gRPC": tritonclient.grpc.InferenceServerClient(server.grpc_url),
        "HTTP": tritonclient.http.InferenceServerClient(server.http_url),
    }


def is_closed(client: Any, calls: Sequence[Call], headers: Sequence[Mapping[str, str] | None]) -> bool:
    """Whether all calls of a group are rejected with any of these headers."""
    return all(_is_rejected(client, call, one) for call in calls for one in headers)


def _is_rejected(client: Any, call: Call, headers: Mapping[str, str] | None) -> bool:
    try:
        call(client, headers)
    except InferenceServerException as error:
        return "restricted" in str(error).lower()
    return False


def closed_groups(server: TritonServer) -> dict[tuple[str, str], bool]:
    """Which groups are closed without the key and with a wrong one, and open with the right one, by protocol."""
    wrong = dict.fromkeys(server.admin_headers, "0" * 32)
    closed = {}
    for protocol, client in stock_clients(server).items():
        for group, calls in ADMINISTRATIVE.items():
            opens = not _is_rejected(client, calls[0], server.admin_headers)
            closed[group, protocol] = is_closed(client, calls, (None, wrong)) and opens
    return closed


def open_pages(server: TritonServer) -> Iterator[tuple[str, str]]:
    """Read what stock clients read: its name, and its content; raises where one cannot be read."""
    paths = ["", "/health/ready", "/health/live", "/models/stats"]
    paths += [f"/models/{model}{rest}" for model in _MODELS for rest in ("", "/config", "/stats", "/ready")]
    for path in paths:
        connection = http.client.HTTPConnection(server.http_url, timeout=60)
        connection.request("GET", f"/v2{path}")
        reply = connection.getresponse()
        content = reply.read().decode()
        connection.close()
        if reply.status != http.HTTPStatus.OK:
            raise InferenceServerException(f"GET /v2{path}: {reply.status} {content}")
        yield f"HTTP /v2{path}", content
    grpc = stock_clients(server)["gRPC"]
    yield "gRPC metadata", json.dumps(grpc.get_server_metadata(as_json=True))
    yield "gRPC statistics", json.dumps(grpc.get_inference_statistics(as_json=True))
    for model in _MODELS:
        yield f"gRPC config of {model}", json.dumps(grpc.get_model_config(model, as_json=True))
        yield f"gRPC metadata of {model}", json.dumps(grpc.get_model_metadata(model, as_json=True))
