"""Tokens in front of a real server, over both protocols."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from backends.home import Home
from backends.lower.caller_check import AUTH_VARIABLE
from backends.registry.registry import Registry
from backends.seal import Seal
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import TritonServer
from builder.serving.canary import _ask_http
from hplm_client import (
    ClientError,
    HplmClient,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from served_home import Served, config_of, copied
from waiting import wait_until

pytestmark = pytest.mark.server
PROTOCOLS = ("grpc", "http")


@pytest.fixture(scope="module")
def guarded(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("guarded")
    home = copied(built_home, work)
    render_repository(home.repository, ExportSettings(lower_instances=2, lower_parameters={"dtype": "fp32"}))
    config = config_of(home)
    with TritonServer(replace(config, environment={**config.environment, AUTH_VARIABLE: "tokens"})) as server:
        yield Served(home, server, work)


@pytest.fixture(scope="module")
def registry(guarded: Served) -> Iterator[Registry]:
    registry = Registry.open(guarded.home)
    yield registry
    registry.close()


def client(served: Served, protocol: str, token: str | None) -> HplmClient:
    url = served.grpc_url if protocol == "grpc" else served.http_url
    return HplmClient(f"{protocol}://{url}", token=token)


def outcome(served: Served, protocol: str, token: str | None, hplm: str) -> str:
    with client(served, protocol, token) as asking:
        try:
            return asking.infer(hplm, "my cat is lovely").hplm
        except ClientError as error:
            return f"{type(error).__name__}: {error}"


def is_told(served: Served, token: str, words: str) -> bool:
    """Whether each process of the server answers a token so, as far as eight requests meet them all."""
    return all(words in outcome(served, "grpc", token, "acme/topic") for _ in range(8))


def wait_until_known(served: Served, token: str) -> None:
    """Wait until each process of the server knows a token, and so what the registry got before it."""

    def is_known() -> bool:
        with HplmClient(f"grpc://{served.grpc_url}", token=token, rows_per_request=1) as asking:
            answers = asking.infer_many([("globex/topic", "cat")] * 16, on_error="return")
        return not any(isinstance(answer, PermissionDeniedError) for answer in answers)

    wait_until(is_known)


def test_tenants_get_their_own_and_learn_of_no_others(guarded: Served, registry: Registry) -> None:
    hplms = [entry.id for entry in registry.hplms()]
    tokens = {tenant: registry.tokens.create(tenant).text for tenant in sorted({hplm.split("/")[0] for hplm in hplms})}
    wait_until_known(guarded, list(tokens.values())[-1])
    for protocol in PROTOCOLS:
        for tenant, token in tokens.items():
            for hplm in (*hplms, f"{tenant}/none", "nobody/none"):
                is_own = hplm in hplms and hplm.startswith(f"{tenant}/")
                absent = f"NotFoundError: hPLM {hplm!r} does not exist"
                assert outcome(guarded, protocol, token, hplm) == (hplm if is_own else absent)
        for token, words in ((None, "a token is needed"), ("é", "form of one"), ("x" * 100_000, "form of one")):
            assert "PermissionDeniedError: unauthorised: " in outcome(guarded, protocol, token, hplms[0])
            assert words in outcome(guarded, protocol, token, hplms[0])


def test_a_revoked_token_is_soon_no_good(guarded: Served, registry: Registry) -> None:
    issued = [registry.tokens.create("acme") for _ in range(2)]
    wait_until_known(guarded, issued[-1].text)
    for one in issued:
        with client(guarded, "grpc", one.text) as asking:
            assert asking.infer("acme/topic", "cat").hplm == "acme/topic"
            registry.tokens.revoke(one.entry.id)
            told = f"token {one.entry.id} is revoked"
            wait_until(partial(is_told, guarded, one.text, told))
            for _ in range(8):  # both processes
                with pytest.raises(PermissionDeniedError, match=told):
                    asking.infer("acme/topic", "cat")


def test_rows_of_two_tenants_and_two_tokens_are_errors(guarded: Served, registry: Registry) -> None:
    token = registry.tokens.create("*").text
    wait_until_known(guarded, token)

    def post(body: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(guarded.http_url, timeout=60)
        connection.request("POST", "/v2/models/hplm/infer", body)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()

    def body(hplms: list[str], parameters: str) -> str:
        inputs = [
            {"name": name, "shape": [len(hplms), 1], "datatype": "BYTES", "data": data}
            for name, data in (("MODEL", hplms), ("TEXT", ["cat"] * len(hplms)))
        ]
        return f'{{"parameters": {parameters}, "inputs": {json.dumps(inputs)}}}'

    good = json.dumps({"tenant_token": token})
    assert post(body(["acme/topic"], good))[0] == 200
    status, words = post(body(["acme/topic", "globex/topic"], good))
    assert status == 400 and "of one tenant" in words
    doubled = f'{{"tenant_token": "{token}", "tenant_token": "{token}"}}'
    status, words = post(body(["acme/topic"], doubled))
    assert status == 400 and "given twice" in words


def test_the_lower_model_asked_directly_wants_the_token_too(guarded: Served, registry: Registry) -> None:
    token = registry.tokens.create("acme").text
    wait_until_known(guarded, token)
    asking = tritonclient.grpc.InferenceServerClient(guarded.grpc_url)

    def ask(hplm: str, parameters: dict[str, str]) -> object:
        tensors = []
        for name, value in (("MODEL", hplm), ("TEXT", "cat")):
            tensor = tritonclient.grpc.InferInput(name, [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[value.encode()]], np.object_))
            tensors.append(tensor)
        return asking.infer("hplm_lower", tensors, parameters=parameters)

    assert ask("acme/topic", {"tenant_token": token})
    for hplm, parameters, words in (
        ("acme/topic", {}, "a token is needed"),
        ("globex/topic", {"tenant_token": token}, "hPLM 'globex/topic' does not exist"),
    ):
        with pytest.raises(InferenceServerException, match=words):
            ask(hplm, parameters)


def test_the_canary_needs_no_token_of_a_tenant(guarded: Served) -> None:
    seal = Seal.of_watched(guarded.server.pid, guarded.server.run_folder)
    for token, is_good in ((seal.canary_token, True), ("0" * 32, False)):
        told = _ask_http(guarded.http_url, "acme/topic", {"deadline_ms": 5000, "tenant_token": token})
        assert told is None if is_good else "unauthorised" in str(told)


def test_the_client_takes_tokens_by_tenant(guarded: Served, registry: Registry) -> None:
    tokens = {tenant: registry.tokens.create(tenant).text for tenant in ("acme", "globex")}
    wait_until_known(guarded, tokens["globex"])
    url = f"grpc://{guarded.grpc_url}"
    rows = [("acme/topic", "cat"), ("globex/topic", "dog"), ("initech/mood", "cat")] * 3
    with HplmClient(url, token=tokens) as asking:
        outcomes = asking.infer_many(rows, on_error="return")
    kinds = [type(one).__name__ for one in outcomes]
    assert kinds == ["Classification", "Classification", "PermissionDeniedError"] * 3
    with HplmClient(url, token=tokens["acme"]) as asking, pytest.raises(NotFoundError):
        asking.infer("globex/topic", "cat")
    with HplmClient(url, token=tokens["acme"]) as asking, pytest.raises(InvalidRequestError):
        asking.infer("acme/topic", " ")


def test_quotas_hold_for_all_processes_together_and_change_while_they_run(guarded: Served, registry: Registry) -> None:
    registry.quotas.set("acme", {"rows_per_s": 5.0})
    token = registry.tokens.create("*").text
    wait_until_known(guarded, token)
    rows = [("acme/topic", "cat"), ("globex/topic", "dog")] * 20
    with HplmClient(f"grpc://{guarded.grpc_url}", token=token, retries=0, rows_per_request=1) as asking:
        outcomes, began_s = {"acme": 0, "globex": 0}, time.monotonic()
        for hplm, text in rows:
            try:
                outcomes[hplm.partition("/")[0]] += bool(asking.infer(hplm, text))
            except UnavailableError as error:
                assert error.reason == "tenant_quota" and "(quota rows_per_s = 5)" in str(error)
                assert 0 < (error.retry_after_s or 0) <= 0.3
        most = 5 + 5 * (time.monotonic() - began_s)
        assert outcomes["globex"] == 20 and 5 <= outcomes["acme"] <= most
        registry.quotas.remove("acme")
        many = [("acme/topic", "cat")] * 20
        wait_until(lambda: UnavailableError not in map(type, asking.infer_many(many, on_error="return")))
