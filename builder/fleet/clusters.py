"""Groups of servers as Envoy's clusters: how tenants are dealt among them, and how they are looked after."""

from __future__ import annotations

from collections.abc import Sequence
from socket import IPPROTO_TCP, TCP_USER_TIMEOUT
from typing import Any

from builder.fleet.routes import Protocol
from builder.fleet.routing import Servers
from builder.fleet.upstream import Upstream
from builder.placement.fleet.balance import kept_balance

_MANY = 1_000_000
"""Envoy's own limit of 1,024 requests to a server would reject before the server does."""
_HEALTH_EVERY = "0.25s"
"""A draining server says 503 for a second before it rejects requests; that has to be seen meanwhile."""
_HEALTH_OF_OTHERS_EVERY = "1s"
"""Of those that are asked only where a group has no healthy server, or has lost a request."""
_CONNECT = "1s"
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PARTS = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
_UNACKNOWLEDGED = {
    "description": "TCP_USER_TIMEOUT",
    "level": IPPROTO_TCP,
    "name": TCP_USER_TIMEOUT,
    "int_value": 3_000,
    "state": "STATE_PREBIND",
}
"""In milliseconds. By its own limit Linux would send the same bytes again for a quarter of an hour."""
_WHILE_ANY = 10_000
"""In percent: others are asked only once none of the first ones is healthy."""
_NO_BOUND_OF_TWO = 200


def all_clusters(protocol: Protocol, balance: int, upstreams: Sequence[Upstream]) -> list[dict[str, Any]]:
    """Return the cluster of all servers, which has the protocol's name, with those that it is made of.

    A server that has died holds nothing, so by a bound it has room. Of three servers or more the others may hold as
    much as there is then; of two, a bound that allows that would be none. There the second and third try of a request
    go to a cluster of the first and of the second server alone, so one of them to the other server.

    Args:
        protocol: Whose ports they are.
        balance: As in `GatewaySettings`.
        upstreams: All servers.
    """
    if not _asks_one_by_one(balance, upstreams):
        return [_cluster(protocol, protocol, kept_balance(balance, len(upstreams)), upstreams)]
    parts = [_cluster(f"{protocol}-first", protocol, balance, upstreams)]
    parts += [_cluster(f"{protocol}-only-{each.name}", protocol, 0, [each]) for each in upstreams]
    return [*parts, _in_turn(protocol, [part["name"] for part in parts])]


def num_retries(balance: int, upstreams: Sequence[Upstream]) -> int:
    """Return how often a request whose connection broke is tried again, so that it meets two servers at most."""
    return 2 if _asks_one_by_one(balance, upstreams) else 1


def group_clusters(
    protocol: Protocol, balance: int, upstreams: Sequence[Upstream], groups: Sequence[Servers]
) -> list[dict[str, Any]]:
    """Return, for each group of servers, a cluster that asks these as long as one of them is healthy, and else others.

    A request that one of a group has lost goes to the others, too. Not to any: Envoy does not know a server again in
    another cluster, and might ask the one that has just lost the request. So a second holder of a root does not get
    what the first one has lost: to ask both one by one takes a third try, which elsewhere would meet a third server.

    Each cluster checks its own servers: for each group of g of n servers, 4·g + n - g checks a second and protocol.
    """
    parts: dict[Servers, dict[str, Any]] = {}
    made: list[dict[str, Any]] = []
    for group in groups:
        others = tuple(sorted(each.name for each in upstreams if each.name not in group))
        for servers, health_every in ((group, _HEALTH_EVERY), (others, _HEALTH_OF_OTHERS_EVERY)):
            if servers not in parts or servers == group:  # the others of one group may be another group
                chosen = [each for each in upstreams if each.name in servers]
                name = f"{protocol}={'+'.join(servers)}"
                parts[servers] = _cluster(name, protocol, balance, chosen, health_every)
        made.append(_in_turn(cluster_name(protocol, group), [parts[group]["name"], parts[others]["name"]]))
    return [*parts.values(), *made]


def _asks_one_by_one(balance: int, upstreams: Sequence[Upstream]) -> bool:
    return 0 < balance < _NO_BOUND_OF_TWO and len(upstreams) == 2


def _in_turn(name: str, parts: Sequence[str]) -> dict[str, Any]:
    """Return a cluster that asks the first of some clusters that has a healthy server, and for each retry the next one.

    Only a cluster made of clusters lets a request go elsewhere that one of the first servers has lost: with priorities
    in one cluster it does not, where tenants are dealt by a table.
    """
    config = {"@type": f"type.googleapis.com/{_PARTS}", "clusters": list(parts)}
    return {
        "name": name,
        "connect_timeout": _CONNECT,
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": config},
        "circuit_breakers": {"thresholds": [_limits()]},
    }


def cluster_name(protocol: Protocol, servers: Servers) -> str:
    """Name the cluster that requests for these servers, or for any, are sent to."""
    return f"{protocol}:{'+'.join(servers)}" if servers else protocol


def _cluster(
    name: str, protocol: Protocol, balance: int, upstreams: Sequence[Upstream], health_every: str = _HEALTH_EVERY
) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STATIC" if all(each.is_numeric for each in upstreams) else "STRICT_DNS",
        "connect_timeout": _CONNECT,
        # Its table deals tenants evenly, and a lost server moves hardly any but its own. Envoy's ring would move a
        # sixth of the others' where one of three is lost, as the remaining ones then get more entries each.
        "lb_policy": "MAGLEV",
        "common_lb_config": {
            # Else Envoy asks all servers, ready or not, as soon as half of them are not.
            "healthy_panic_threshold": {"value": 0},
            # Else what is known of a server reaches the workers up to a second late where another one has changed just
            # before. Requests then go on to a draining server, over new connections that Envoy leaves open, and Triton
            # waits for these when it ends.
            "update_merge_window": "0s",
            "consistent_hashing_lb_config": {"hash_balance_factor": balance} if balance else {},
        },
        "circuit_breakers": {"thresholds": [_limits()]},
        "health_checks": [_health_check(health_every)],
        # For a machine that vanishes without a word: probes where all that was sent is acknowledged, a limit where not.
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 1, "keepalive_interval": 1}
        },
        "upstream_bind_config": {"socket_options": [_UNACKNOWLEDGED]},
        "typed_extension_protocol_options": {_OPTIONS: _to(protocol)},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [_endpoint(each, getattr(each, protocol)) for each in upstreams]}],
            "policy": {"overprovisioning_factor": _WHILE_ANY},
        },
    }


def _limits() -> dict[str, int]:
    return dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _MANY)


def _to(protocol: Protocol) -> dict[str, Any]:
    options = "http_protocol_options" if protocol == "http" else "http2_protocol_options"
    return {"@type": f"type.googleapis.com/{_OPTIONS}", "explicit_http_config": {options: {}}}


def _health_check(every: str) -> dict[str, Any]:
    return {
        "timeout": "1s",
        "interval": every,
        # Else servers that nobody has asked yet are looked at once a minute.
        "no_traffic_interval": every,
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/readyz"},
    }


def _endpoint(upstream: Upstream, port: int) -> dict[str, Any]:
    return {
        "endpoint": {
            "address": {"socket_address": {"address": upstream.address, "port_value": port}},
            "health_check_config": {"port_value": upstream.health},
        },
        "metadata": {"filter_metadata": {"envoy.lb": {"hash_key": upstream.name}}},
    }
