"""A real tritonserver with the contract models, and every kind of client behind one blocking face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from builder.serving import ServerConfig, TritonServer
from hplm_client import AsyncHplmClient, HplmClient

KINDS = ("grpc", "http", "grpc-aio", "http-aio")
REPOSITORY = Path(__file__).parent / "contract"
FORWARD_HEADERS = ("--http-header-forward-pattern=x-hplm", "--grpc-header-forward-pattern=x-hplm")


class BlockingAio:
    """An `AsyncHplmClient` in an event loop of its own, called like an `HplmClient`."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncHplmClient(url, **settings)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._runner.run(method(*arguments, **options))

    def __enter__(self) -> BlockingAio:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class Connect(Protocol):
    """Opens a client of the kind under test; it is closed when the test ends."""

    def __call__(self, server: TritonServer, **settings: Any) -> HplmClient | BlockingAio: ...


@contextmanager
def contract_server() -> Iterator[TritonServer]:
    config = ServerConfig(repository=REPOSITORY, exit_timeout_s=1, extra_arguments=FORWARD_HEADERS)
    with TritonServer(config) as server:
        yield server


@pytest.fixture(scope="session")
def server() -> Iterator[TritonServer]:
    with contract_server() as running:
        yield running


@pytest.fixture
def doomed_server() -> Iterator[TritonServer]:
    """A server for one test that ends it."""
    with contract_server() as running:
        yield running


def client_of(kind: str, server: TritonServer, **settings: Any) -> HplmClient | BlockingAio:
    protocol, _, aio = kind.partition("-")
    url = f"{protocol}://{server.grpc_url if protocol == 'grpc' else server.http_url}"
    return BlockingAio(url, **settings) if aio else HplmClient(url, **settings)


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda server, **settings: stack.enter_context(client_of(request.param, server, **settings))


@pytest.fixture
def every_kind() -> Callable[[Callable[[Connect], None]], None]:
    """Runs a check with every kind of client at the same time, for servers that only one test can use."""

    def check_all(check: Callable[[Connect], None]) -> None:
        def check_one(kind: str) -> None:
            with ExitStack() as stack:
                check(lambda server, **settings: stack.enter_context(client_of(kind, server, **settings)))

        with ThreadPoolExecutor(len(KINDS)) as pool:
            for done in [pool.submit(check_one, kind) for kind in KINDS]:
                done.result()

    return check_all
