"""What changes or reads the machine is closed, over both protocols; what stock clients need is open."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from backends.registry.registry import Registry
from bench.kit.doors.endpoints import ADMINISTRATIVE, open_pages
from builder.serving.run_folder import SHARED_MEMORY
from served_home import Served

pytestmark = pytest.mark.server


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
    pages = dict(open_pages(served.server))
    assert len(pages) > 20 and tenants
    for name, content in pages.items():
        assert not [tenant for tenant in tenants if tenant in content], name
    stock = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    assert stock.is_server_ready() and stock.is_model_ready("hplm")


def test_shared_memory_is_private_and_named_as_newer_tritons_reserve(served: Served) -> None:
    prefix = f"triton_hplm_{Path(served.server.log_path).parent.name.removeprefix('hplm-triton-')}_"
    regions = list(SHARED_MEMORY.glob(f"{prefix}*"))
    assert len(regions) >= 3  # two instances of the lower model, one of the upper
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}
