"""What changes or reads the machine is closed, over both protocols; what stock clients need is open."""

from __future__ import annotations

import http.client
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from backends.registry.registry import Registry
from builder.serving.run_folder import SHARED_MEMORY
from served_home import Served

pytestmark = pytest.mark.server
Call = Callable[[Any, dict[str, str] | None], Any]
ADMINISTRATIVE: dict[str, list[Call]] = {
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


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, served: Served) -> Any:
    if request.param == "grpc":
        return tritonclient.grpc.InferenceServerClient(served.grpc_url)
    return tritonclient.http.InferenceServerClient(served.http_url)


@pytest.mark.parametrize("group", ADMINISTRATIVE)
def test_administrative_endpoints_need_the_key_of_this_start(client: Any, served: Served, group: str) -> None:
    wrong = dict.fromkeys(served.server.admin_headers, "0" * 32)
    for call in ADMINISTRATIVE[group]:
        for headers in (None, wrong):
            with pytest.raises(InferenceServerException, match=r"(?i)restricted"):
                call(client, headers)
    ADMINISTRATIVE[group][0](client, served.server.admin_headers)


def test_the_key_lies_in_a_file_for_the_operator(served: Served) -> None:
    folder = Path(served.server.log_path).parent
    assert (folder / "admin-key").read_text() in served.server.admin_headers.values()


def test_what_stock_clients_read_is_open_and_names_no_tenant(served: Served) -> None:
    tenants = {entry.id.partition("/")[0] for entry in Registry.open(served.home).hplms()}
    paths = ["", "/health/ready", "/health/live", "/models/stats"]
    for model in ("hplm", "hplm_lower", "hplm_upper"):
        paths += [f"/models/{model}{rest}" for rest in ("", "/config", "/stats", "/ready")]
    for path in paths:
        connection = http.client.HTTPConnection(served.http_url, timeout=60)
        connection.request("GET", f"/v2{path}")
        reply = connection.getresponse()
        content = reply.read().decode()
        assert reply.status == 200, (path, content)
        assert not [tenant for tenant in tenants if tenant in content], path
    stock = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    assert stock.is_server_ready() and stock.is_model_ready("hplm")
    told = [stock.get_server_metadata(as_json=True), stock.get_inference_statistics(as_json=True)]
    told += [stock.get_model_config("hplm_upper", as_json=True), stock.get_model_metadata("hplm", as_json=True)]
    assert tenants and not [tenant for tenant in tenants if tenant in json.dumps(told)]


def test_shared_memory_is_private_and_named_as_newer_tritons_reserve(served: Served) -> None:
    prefix = f"triton_hplm_{Path(served.server.log_path).parent.name.removeprefix('hplm-triton-')}_"
    regions = list(SHARED_MEMORY.glob(f"{prefix}*"))
    assert len(regions) >= 3  # two instances of the lower model, one of the upper
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}
