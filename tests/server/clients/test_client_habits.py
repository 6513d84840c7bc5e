"""What users of other SDKs expect: questions by task, environment, options per call, request IDs, clear errors."""

from __future__ import annotations

import json
import re

import pytest

import hplm_client
from builder.serving import TritonServer
from hplm_client import AsyncHplmClient, Classification, HplmClient, InvalidRequestError, WrongPortError

pytestmark = pytest.mark.server


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: TritonServer) -> str:
    place = server.grpc_url if request.param == "grpc" else server.http_url
    return f"{request.param}://{place}"


def test_questions_by_task(url: str) -> None:
    with HplmClient(url) as client:
        one = client.classify("acme/topics", "a text")
        many = client.classify("acme/topics", ["a text", "another"])
        assert isinstance(one, Classification) and one == many[0] and len(many) == 2
        assert [label for label, _ in one.top_k(2)] == sorted(one.scores, key=lambda name: -one.scores[name])
        assert one.top_k(1)[0] == (one.label, one.score)
        assert [entity.text for entity in client.entities("acme/names", "Ada met Bob").entities] == ["Ada", "Bob"]
        assert client.score("acme/length", ["four", "fifteen"])[1].value == 7.0
        assert one.to_dict()["label"] == one.label
        with pytest.raises(InvalidRequestError, match=r"acme/length is a model for regression; ask it with score\(\)"):
            client.classify("acme/length", "a text")


async def test_questions_by_task_under_asyncio(url: str) -> None:
    async with AsyncHplmClient(url) as client:
        assert (await client.classify("acme/topics", ["a text"]))[0] == await client.classify("acme/topics", "a text")
        assert (await client.entities("acme/names", "Ada")).entities[0].text == "Ada"
        assert (await client.score("acme/length", "four")).value == 4.0


def test_request_ids_are_on_answers_and_errors(url: str) -> None:
    with HplmClient(url) as client:
        first, second = client.infer("acme/topics", "a"), client.infer("acme/topics", "a")
        assert re.fullmatch("[0-9a-f]{32}", first.request_id) and first.request_id != second.request_id
        with pytest.raises(hplm_client.NotFoundError) as caught:
            client.infer("acme/none", "a")
        assert re.fullmatch("[0-9a-f]{32}", caught.value.request_id or "")
        assert str(caught.value) == "hPLM acme/none is unknown"


def test_options_per_call_share_the_connection(url: str) -> None:
    with HplmClient(url) as client:
        hurried = client.with_options(deadline_ms=321, timeout_s=5, retries=0)
        parameters = json.loads(hurried.classify("echo/parameters", "a").label)
        assert 160 < parameters["deadline_ms"] <= 321  # what is left of it
        assert "deadline" not in client.classify("echo/parameters", "a").label
    with pytest.raises(hplm_client.ClientError, match="closed"):
        hurried.infer("acme/topics", "a")


def test_settings_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPLM_URL", url)
    monkeypatch.setenv("HPLM_TOKEN", "secret")
    monkeypatch.setenv("HPLM_DEADLINE", "2s")
    monkeypatch.setenv("HPLM_TIMEOUT", "100ms")
    with HplmClient() as client:
        parameters = client.with_options(timeout_s=5).classify("echo/parameters", "a").label
        assert "secret" in parameters and re.search(r"deadline_ms\D+(2000|1[0-9]{3})", parameters)
        with pytest.raises(hplm_client.RequestTimeoutError, match=r"within 0\.(1|0[0-9]+) s"):  # or what is left of it
            client.infer("slow/1500", "a")
    monkeypatch.setenv("HPLM_TIMEOUT", "soon")
    with pytest.raises(InvalidRequestError, match="HPLM_TIMEOUT must be a time such as 500ms"):
        HplmClient()


def wrong(server: TritonServer) -> list[tuple[str, str]]:
    return [
        (
            f"grpc://{server.http_url}",
            f"{server.http_url} speaks HTTP, not gRPC; give the gRPC port, or http://{server.http_url} if",
        ),
        (f"http://{server.grpc_url}", f"{server.grpc_url} speaks gRPC, not HTTP; use grpc://{server.grpc_url}"),
    ]


def test_wrong_ports_are_named(server: TritonServer) -> None:
    for url, message in wrong(server):
        with HplmClient(url) as client:
            with pytest.raises(WrongPortError, match=re.escape(message)):
                client.infer("acme/topics", "a")
            with pytest.raises(WrongPortError):
                client.wait_ready(5)


async def test_wrong_ports_are_named_under_asyncio(server: TritonServer) -> None:
    for url, message in wrong(server):
        async with AsyncHplmClient(url) as client:
            with pytest.raises(WrongPortError, match=re.escape(message)):
                await client.infer("acme/topics", "a")
