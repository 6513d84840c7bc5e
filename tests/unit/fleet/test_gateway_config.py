"""The rendered configuration of the gateway, and settings that it cannot have."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from backends.errors import InvalidArgumentError
from builder.fleet.clusters import group_clusters
from builder.fleet.gateway import gateway_arguments, num_threads
from builder.fleet.gateway_config import GatewaySettings, gateway_config
from builder.fleet.gateway_program import find_gateway
from builder.fleet.hosts import read_hosts
from builder.fleet.upstream import Upstream
from builder.serving.tls import Tls
from certificates import Authority

_PROJECT = Path(__file__).parents[3]
TWO = [
    Upstream(name=f"server-{number}", address=f"10.0.0.{number}", http=8000, grpc=8001, health=8003)
    for number in (1, 2)
]


def clusters(document: dict) -> dict[str, dict]:
    return {each["name"]: each for each in document["static_resources"]["clusters"]}


def test_servers_are_checked_on_their_health_port_and_known_by_name() -> None:
    endpoints = clusters(gateway_config(GatewaySettings(), TWO))["grpc-first"]["load_assignment"]["endpoints"]
    assert [
        (
            each["endpoint"]["address"]["socket_address"],
            each["endpoint"]["health_check_config"],
            each["metadata"]["filter_metadata"]["envoy.lb"]["hash_key"],
        )
        for each in endpoints[0]["lb_endpoints"]
    ] == [
        ({"address": f"10.0.0.{number}", "port_value": 8001}, {"port_value": 8003}, f"server-{number}")
        for number in (1, 2)
    ]


def test_host_names_are_resolved_and_addresses_are_not() -> None:
    named = [TWO[0], dataclasses.replace(TWO[1], address="server-2.internal")]
    for upstreams, kind in ((TWO, "STATIC"), (named, "STRICT_DNS")):
        assert clusters(gateway_config(GatewaySettings(), upstreams))["http-first"]["type"] == kind


def test_only_the_own_gateway_has_an_administrative_socket() -> None:
    assert "admin" not in gateway_config(GatewaySettings(), TWO)
    admin = gateway_config(GatewaySettings(admin_socket=Path("/run/x.sock")), TWO)["admin"]
    assert admin == {"address": {"pipe": {"path": "/run/x.sock", "mode": 0o600}}}


def test_without_a_bound_the_tenant_alone_decides() -> None:
    free = clusters(gateway_config(GatewaySettings(balance=0), TWO))
    assert free.keys() == {"http", "grpc"} and bound_of(free["http"]) is None


def test_two_servers_are_asked_one_by_one_for_what_is_lost() -> None:
    found = clusters(gateway_config(GatewaySettings(balance=150), TWO))
    in_turn = found["http"]["cluster_type"]["typed_config"]["clusters"]
    assert [(bound_of(found[name]), num_servers(found[name])) for name in in_turn] == [(150, 2), (None, 1), (None, 1)]
    assert retries_of(gateway_config(GatewaySettings(balance=150), TWO)) == {2}
    for balance in (0, 200):
        assert retries_of(gateway_config(GatewaySettings(balance=balance), TWO)) == {1}


@pytest.mark.parametrize(
    ("count", "given", "kept"),
    [(3, 125, 150), (4, 125, 134), (5, 125, 125), (9, 125, 125), (3, 160, 160), (3, 0, None)],
)
def test_a_bound_is_one_that_all_servers_but_one_can_keep(count: int, given: int, kept: int | None) -> None:
    several = [dataclasses.replace(TWO[0], name=f"s{number}", address=f"10.0.0.{number}") for number in range(count)]
    document = gateway_config(GatewaySettings(balance=given), several)
    assert {bound_of(each) for each in clusters(document).values()} == {kept}
    assert retries_of(document) == {1}


def test_what_is_known_of_a_server_counts_at_once() -> None:
    document = gateway_config(GatewaySettings(), TWO)
    of_servers = [each for each in clusters(document).values() if "load_assignment" in each]
    of_servers += [each for each in group_clusters("grpc", 125, TWO, [("server-1",)]) if "load_assignment" in each]
    assert len(of_servers) == 8
    assert {each["common_lb_config"]["update_merge_window"] for each in of_servers} == {"0s"}


def test_others_than_a_group_are_checked_less_often() -> None:
    three = [*TWO, dataclasses.replace(TWO[0], name="server-3", address="10.0.0.3")]
    groups = [("server-1",), ("server-2", "server-3"), ("server-3",)]
    for order in (groups, groups[::-1]):
        found = {each["name"]: each for each in group_clusters("http", 125, three, order)}
        assert {
            name.partition("=")[2]: {each["health_checks"][0][kind] for kind in ("interval", "no_traffic_interval")}
            for name, each in found.items()
            if "=" in name
        } == {
            "server-1": {"0.25s"},
            "server-2+server-3": {"0.25s"},
            "server-3": {"0.25s"},
            "server-1+server-2": {"1s"},
        }


def num_servers(cluster: dict) -> int:
    return len(cluster["load_assignment"]["endpoints"][0]["lb_endpoints"])


def retries_of(document: dict) -> set[int]:
    return {
        route["route"]["retry_policy"]["num_retries"]
        for listener in document["static_resources"]["listeners"]
        for chain in listener["filter_chains"]
        for host in chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
        for route in host["routes"]
        if "route" in route
    }


def bound_of(cluster: dict) -> int | None:
    return cluster["common_lb_config"]["consistent_hashing_lb_config"].get("hash_balance_factor")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"http": 0}, "port 0 is not between 1 and 65535"),
        ({"grpc": 70000}, "port 70000 is not between"),
        ({"http": 8001}, "port 8001 is given twice"),
        ({"balance": 99}, "a balance of 99 % cannot be kept"),
        ({"balance": -1}, "a balance of -1 % cannot be kept"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        GatewaySettings(**changes)


@pytest.mark.parametrize(
    ("upstreams", "message"),
    [
        ([], "at least one server"),
        ([TWO[0], TWO[0]], "server-1 is given twice"),
        ([TWO[0], dataclasses.replace(TWO[0], name="other")], "10.0.0.1:8000 is given twice"),
        ([dataclasses.replace(TWO[0], health=8000)], "HTTP, gRPC and health need a port each"),
    ],
)
def test_servers_that_cannot_be(upstreams: list[Upstream], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        gateway_config(GatewaySettings(), upstreams)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_envoy_takes_the_configuration_with_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem, key = authority.sign("gateway")
    named = [dataclasses.replace(each, address=f"{each.name}.internal") for each in TWO]
    document = gateway_config(GatewaySettings(tls=Tls(pem, key, authority.certificate)), named)
    said = validated(document, tmp_path)
    assert "OK" in said and "eprecated" not in said


def test_envoy_takes_the_deployment_s_configuration(tmp_path: Path) -> None:
    document = json.loads((_PROJECT / "deploy" / "gateway" / "envoy.json").read_text(encoding="utf-8"))
    assert "OK" in validated(document, tmp_path)


def validated(document: dict, folder: Path) -> str:
    path = folder / "envoy.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    command = [find_gateway().binary, "--mode", "validate", *gateway_arguments(path, 1)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_most_of_the_machine_is_left_to_the_servers() -> None:
    assert [num_threads(cores) for cores in (1, 2, 8, 32, 128)] == [1, 1, 2, 8, 8]


def test_the_deployment_s_configuration_is_that_of_its_hosts() -> None:
    folder = _PROJECT / "deploy" / "gateway"
    rendered = gateway_config(GatewaySettings(address="0.0.0.0"), read_hosts(folder / "hosts.toml"))
    assert json.loads((folder / "envoy.json").read_text(encoding="utf-8")) == rendered


def test_the_deployment_runs_the_servers_that_its_gateway_asks() -> None:
    compose = yaml.safe_load((_PROJECT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    asked = {each.address for each in read_hosts(_PROJECT / "deploy" / "gateway" / "hosts.toml")}
    assert asked == {name for name, service in services.items() if service["image"] == "hplm"}
    assert all(":" in service["image"] or service["image"] == "hplm" for service in services.values())
    assert all(port.startswith("127.0.0.1:") for port in services["gateway"]["ports"])
