"""The real Envoy with the rendered configuration, before servers that break, reject and hang on purpose."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from builder.fleet.errors import GatewayFailedError
from builder.fleet.gateway import Gateway
from builder.fleet.gateway_config import GatewaySettings
from builder.fleet.gateway_program import find_gateway
from builder.fleet.routes import MAX_REQUEST_BYTES
from builder.fleet.routing import Routing
from builder.placement.fleet.maglev import Deal
from builder.serving.ports import ClaimedPorts
from stand_in_servers import INFER_METHOD, INFER_PATH, StandIn
from waiting import LIMIT_S, wait_until


class Asked:
    """A running gateway and the servers behind it."""

    def __init__(self, gateway: Gateway, servers: list[StandIn], settings: GatewaySettings) -> None:
        self.gateway, self.servers, self.settings = gateway, servers, settings

    def http(
        self, hplm: str | None, path: str = INFER_PATH, method: str = "POST", body: bytes = b"x", **headers: str
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.settings.http, timeout=2 * LIMIT_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, given | ({} if hplm is None else {"x-hplm": hplm}))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def grpc(self, hplm: str, method: str = INFER_METHOD, **metadata: str) -> str:
        pairs = [("x-hplm", hplm), *((name.replace("_", "-"), value) for name, value in metadata.items())]
        with grpc.insecure_channel(f"127.0.0.1:{self.settings.grpc}") as channel:
            return channel.unary_unary(method)(b"x", timeout=2 * LIMIT_S, metadata=pairs).decode()

    def ask(self, protocol: str, hplm: str) -> tuple[bool, str]:
        """Return whether there was an answer, and from whom."""
        if protocol == "http":
            status, name = self.http(hplm)
            return status == 200, name
        try:
            return True, self.grpc(hplm)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False, str(error.details())

    def asked(self, protocol: str = "http") -> list[int]:
        return [server.asked[protocol] for server in self.servers]

    def reset(self) -> None:
        """Forget what was asked."""
        for server in self.servers:
            server.asked.clear()
            server.released.clear()

    def healthy(self) -> list[bool]:
        assert self.gateway.admin is not None
        routed = self.gateway.admin.routed()
        return [
            routed[each.upstream.http].is_healthy and routed[each.upstream.grpc].is_healthy for each in self.servers
        ]


@contextmanager
def before(count: int, folder: Path) -> Iterator[Asked]:
    servers = [StandIn(f"server-{number}") for number in range(1, count + 1)]
    ports = ClaimedPorts.take([("127.0.0.1", None)] * 2)
    settings = GatewaySettings(http=ports.numbers[0], grpc=ports.numbers[1])
    gateway = Gateway(find_gateway(), settings, [each.upstream for each in servers], folder / "gateway.log")
    gateway.start()
    try:
        gateway.wait_ready()
        asked = Asked(gateway, servers, settings)
        wait_until(lambda: all(asked.healthy()))
        yield asked
    finally:
        gateway.stop()
        ports.release()
        for server in servers:
            server.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with before(3, tmp_path_factory.mktemp("gateway")) as asked:
        yield asked


@pytest.fixture
def asked(three: Asked) -> Iterator[Asked]:
    yield three
    for server in three.servers:
        server.behaviour, server.is_ready = "answer", True
        server.released.set()
    # What Envoy's main thread knows, its workers know a little later.
    names = {server.name for server in three.servers}
    wait_until(lambda: all(three.healthy()) and {three.http(f"{number}/x")[1] for number in range(30)} == names)
    three.reset()


def test_a_tenant_stays_with_one_server_over_both_protocols(asked: Asked, seed: int) -> None:
    rng = random.Random(seed)
    tenants = [f"tenant-{rng.randrange(10**9)}" for _ in range(30)]
    servers_of = defaultdict(set)
    for tenant in tenants * 2:
        servers_of[tenant].add(asked.http(f"{tenant}/{rng.randrange(10**6)}")[1])
        servers_of[tenant].add(asked.grpc(f"{tenant}/{rng.randrange(10**6)}"))
    assert [len(servers) for servers in servers_of.values()] == [1] * len(tenants)
    assert set.union(*servers_of.values()) == {server.name for server in asked.servers}


def test_a_request_without_the_header_is_answered(asked: Asked) -> None:
    assert asked.http(None)[0] == 200


def test_only_a_lost_servers_tenants_move(asked: Asked) -> None:
    tenants = [f"tenant-{number}/x" for number in range(40)]
    at_first = {tenant: asked.http(tenant)[1] for tenant in tenants}
    assert "server-1" in at_first.values()
    asked.servers[0].is_ready = False
    wait_until(lambda: all(asked.http(tenant)[1] != "server-1" for tenant in tenants))
    then = {tenant: asked.http(tenant)[1] for tenant in tenants}
    assert all(then[tenant] == server or server == "server-1" for tenant, server in at_first.items())
    names = [server.name for server in asked.servers]
    for among, observed in (([0, 1, 2], at_first), ([1, 2], then)):
        deal = Deal(names, among, asked.settings.balance)
        assert {tenant: names[deal.server_of(tenant.partition("/")[0], [0, 0, 0])] for tenant in tenants} == observed


def test_a_broken_connections_next_server_is_foreseen(asked: Asked) -> None:
    names = [server.name for server in asked.servers]
    deal = Deal(names, [0, 1, 2], asked.settings.balance)
    tenants = [tenant for tenant in map("tenant-{}".format, range(60)) if deal.server_of(tenant, [0, 0, 0]) == 1]
    asked.servers[1].behaviour = "break"
    foreseen = [names[deal.other_server_of(tenant, [0, 0, 0], tried=1)] for tenant in tenants]
    assert len(tenants) > 5 and [asked.http(f"{tenant}/x")[1] for tenant in tenants] == foreseen


@pytest.mark.parametrize("headers", [{}, {"x_envoy_retry_on": "5xx", "x_envoy_retry_grpc_on": "unavailable"}])
def test_a_rejection_is_an_answer_whatever_the_caller_wishes(asked: Asked, headers: dict[str, str]) -> None:
    for server in asked.servers:
        server.behaviour = "reject"
    assert asked.http("acme/x", **headers) == (503, '{"error": "queue_full"}')
    with pytest.raises(grpc.RpcError) as rejected:
        asked.grpc("acme/x", **headers)
    assert (rejected.value.code(), rejected.value.details()) == (grpc.StatusCode.UNAVAILABLE, "queue_full")
    assert sum(asked.asked("http")) == sum(asked.asked("grpc")) == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_broken_connection_is_tried_again_on_another_server(asked: Asked, protocol: str) -> None:
    asked.servers[1].behaviour = "break"
    answers = [asked.ask(protocol, f"tenant-{number}/x") for number in range(40)]
    assert set(answers) == {(True, "server-1"), (True, "server-3")}
    assert asked.servers[1].asked[protocol] > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_dead_server_of_three_gets_no_lost_request_again(asked: Asked, protocol: str) -> None:
    asked.servers[1].behaviour = "break"
    require_none_lost(asked, [asked.servers[0], asked.servers[2]], protocol)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_dead_server_of_two_gets_no_lost_request_again(tmp_path: Path, protocol: str) -> None:
    with before(2, tmp_path) as asked:
        assert {asked.grpc(f"tenant-{number}/x") for number in range(12)} == {"server-1", "server-2"}
        for dead, alive in (asked.servers, reversed(asked.servers)):
            dead.behaviour = "break"
            require_none_lost(asked, [alive], protocol)
            alive.behaviour = dead.behaviour = "answer"
        for server in asked.servers:
            server.behaviour = "break"
        assert not asked.ask(protocol, "acme/x")[0]


def require_none_lost(asked: Asked, holding: Sequence[StandIn], protocol: str) -> None:
    """Ask 24 times at once: the others hold all, so that the dead server, which holds nothing, seems to have room."""
    asked.reset()
    for server in holding:
        server.behaviour = "hold"
    with ThreadPoolExecutor(24) as callers:
        waiting = []
        for number in range(24):
            waiting.append(callers.submit(asked.ask, protocol, f"tenant-{number}/x"))
            wait_until(lambda sent=number + 1: sum(server.asked[protocol] for server in holding) == sent)
        for server in holding:
            server.released.set()
        assert {each.result(LIMIT_S)[0] for each in waiting} == {True}
    assert sum(asked.asked(protocol)) > 24, "none was lost by the dead server"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_that_breaks_every_connection_meets_two_servers(asked: Asked, protocol: str) -> None:
    for server in asked.servers:
        server.behaviour = "break"
    is_answered, reason = asked.ask(protocol, "acme/x")
    assert not is_answered and reason
    assert sorted(asked.asked(protocol)) == [0, 1, 1]


def test_without_a_ready_server_nothing_is_asked(asked: Asked) -> None:
    for server in asked.servers:
        server.is_ready = False

    def rejects_grpc() -> bool:
        try:
            asked.grpc("acme/x")
        except grpc.RpcError:
            return True
        return False

    wait_until(lambda: all(asked.http("acme/x")[0] == 503 for _ in range(10)))
    wait_until(lambda: all(rejects_grpc() for _ in range(10)))  # the servers of each protocol are looked at apart
    asked.reset()
    status, body = asked.http("acme/x")
    assert (status, json.loads(body)) == (503, {"error": "no healthy upstream"})
    with pytest.raises(grpc.RpcError) as unanswered:
        asked.grpc("acme/x")
    assert unanswered.value.code() is grpc.StatusCode.UNAVAILABLE
    assert asked.asked() == asked.asked("grpc") == [0, 0, 0]


def test_a_busy_tenant_takes_more_than_its_own_server(asked: Asked) -> None:
    for server in asked.servers:
        server.behaviour = "hold"
    with ThreadPoolExecutor(12) as callers:
        waiting = []
        for number in range(12):  # one after the other, since Envoy counts what it has sent
            waiting.append(callers.submit(asked.http, "acme/x"))
            wait_until(lambda sent=number + 1: sum(asked.asked()) == sent)
        for server in asked.servers:
            server.released.set()
        assert {each.result(LIMIT_S)[0] for each in waiting} == {200}
    assert max(asked.asked()) <= 7  # the last one went where 6 were open, half over the mean of 4


def test_many_requests_of_a_connection_may_be_open_and_given_up(asked: Asked) -> None:
    """Envoy's defaults would hold those beyond 1,024 in the client, and end a connection of a thousand given up."""
    admin, count = asked.gateway.admin, 1_200
    assert admin is not None
    for server in asked.servers:
        server.behaviour = "hold"

    def num_open() -> int:
        routed = admin.routed()
        return sum(routed[each.upstream.grpc].open for each in asked.servers)

    with grpc.insecure_channel(f"127.0.0.1:{asked.settings.grpc}") as channel:
        ask = channel.unary_unary(INFER_METHOD)
        calls = [ask.future(b"x", timeout=4 * LIMIT_S, metadata=[("x-hplm", f"tenant{n}/x")]) for n in range(count)]
        wait_until(lambda: num_open() == count)
        time.sleep(1.05)  # as a client does that has a deadline, and waits for a second beyond it
        for call in calls[1:-1]:
            call.cancel()
        wait_until(lambda: num_open() == 2)
        for server in asked.servers:
            server.released.set()
        names = {each.name.encode() for each in asked.servers}
        assert {calls[0].result(LIMIT_S), calls[-1].result(LIMIT_S)} <= names


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/hplm/unload"),
        ("POST", "/v2/models/hplm_lower/infer"),
        ("POST", "/v2/models/hplm/../hplm_lower/infer"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/models/hplm/config"),
        ("GET", INFER_PATH),
        ("GET", "/readyz"),
        ("POST", "/drain"),
    ],
)
def test_what_administers_a_server_is_not_passed_on(asked: Asked, method: str, path: str) -> None:
    status, body = asked.http("acme/x", path, method)
    assert status == 404 and json.loads(body)["error"].startswith("the gateway passes inference")
    assert asked.asked() == [0, 0, 0]


@pytest.mark.parametrize("method", ["RepositoryIndex", "ModelStatistics", "ModelStreamInfer", "LogSettings"])
def test_other_methods_of_grpc_are_not_passed_on(asked: Asked, method: str) -> None:
    with pytest.raises(grpc.RpcError) as closed:
        asked.grpc("acme/x", f"/inference.GRPCInferenceService/{method}")
    assert closed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "the gateway passes inference" in str(closed.value.details())


def test_a_request_beyond_the_limit_reaches_no_server(asked: Asked) -> None:
    assert asked.http("acme/x", body=bytes(MAX_REQUEST_BYTES // 2))[0] == 200
    assert asked.http("acme/x", body=bytes(MAX_REQUEST_BYTES + 1))[0] == 413
    assert sum(asked.asked()) == 1


HELD = {"server-1": ("base",), "server-2": ("base", "small"), "server-3": ("large",)}
ROOT_OF = {"acme/a": "base", "acme/b": "base", "acme/small": "small", "globex/a": "large", "umbrella/a": "unheld"}
MANY_LARGE = [f"tenant-{number}/large" for number in range(12)]


@contextmanager
def placed(asked: Asked) -> Iterator[None]:
    asked.gateway.route(Routing.of(HELD, ROOT_OF | dict.fromkeys(MANY_LARGE, "large")))
    try:
        yield
    finally:
        asked.gateway.route(Routing())
        wait_until(lambda: len({asked.http(f"{number}/globex")[1] for number in range(20)}) == 3)


def names(asked: Asked, hplm: str) -> set[str]:
    return {asked.http(hplm)[1] for _ in range(8)} | {asked.grpc(hplm) for _ in range(8)}


def test_requests_go_to_servers_that_hold_their_root(asked: Asked) -> None:
    with placed(asked):
        wait_until(lambda: names(asked, "globex/a") == {"server-3"})
        assert names(asked, "acme/small") == {"server-2"}
        assert names(asked, "acme/a") <= {"server-1", "server-2"}
        assert names(asked, "acme/new") <= {"server-1", "server-2"}
        assert names(asked, "globex/new") == {"server-3"}
        others = {asked.http(f"other-{number}/x")[1] for number in range(30)}
        assert others == {"server-1", "server-2", "server-3"}
        assert asked.http(None)[0] == 200


def test_a_holder_that_breaks_or_drains_loses_no_request(asked: Asked) -> None:
    with placed(asked):
        wait_until(lambda: names(asked, "globex/a") == {"server-3"})
        asked.servers[2].behaviour = "break"
        assert {asked.http(hplm)[0] for hplm in MANY_LARGE} == {200}
        asked.servers[2].behaviour = "answer"
        asked.servers[2].is_ready = False
        wait_until(lambda: not names(asked, "globex/a") & {"server-3"})
        asked.servers[2].is_ready = True
        wait_until(lambda: names(asked, "globex/a") == {"server-3"})


def test_other_routes_come_into_force_while_requests_go_on(asked: Asked) -> None:
    statuses: list[int] = []
    stopping = threading.Event()

    def ask() -> None:
        while not stopping.is_set():
            statuses.append(asked.http("acme/a")[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        with placed(asked):
            wait_until(lambda: names(asked, "globex/a") == {"server-3"})
    stopping.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200} and len(statuses) > 50


def test_a_gateway_whose_port_another_program_takes_says_so(tmp_path: Path) -> None:
    server = StandIn("server-1")
    settings = GatewaySettings(http=server.upstream.http, grpc=server.upstream.grpc)
    gateway = Gateway(find_gateway(), settings, [server.upstream], tmp_path / "gateway.log")
    try:
        gateway.start()
        with pytest.raises(GatewayFailedError, match=r"the gateway ended while starting: .*Address already in use"):
            gateway.wait_ready()
    finally:
        gateway.stop()
        server.close()
