"""Groups of servers as Envoy's clusters: how tenants are dealt among them, and how they are looked after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builder.fleet.routes import Protocol
from builder.fleet.routing import Servers
from builder.fleet.upstream import Upstream

_MANY = 1_000_000
"""Envoy's own limit of 1,024 requests to a server would reject before the server does."""
_HEALTH_EVERY = "0.25s"
"""A draining server says 503 for a second before it rejects requests; that has to be seen meanwhile."""
_CONNECT = "1s"
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PARTS = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
_WHILE_ANY = 10_000
"""In percent: others are asked only once none of the first ones is healthy."""


def cluster(protocol: Protocol, balance: int, upstreams: Sequence[Upstream]) -> dict[str, Any]:
    """Return the cluster of one protocol's ports of all servers; `balance` as in `GatewaySettings`."""
    return _cluster(protocol, protocol, balance, upstreams)


def group_clusters(
    protocol: Protocol, balance: int, upstreams: Sequence[Upstream], servers: Servers
) -> list[dict[str, Any]]:
    """Return a cluster of some servers, and one that asks these as long as one of them is healthy, and else any.

    Only a cluster made of clusters lets a request go elsewhere that one of the first servers has lost: with priorities
    in one cluster it does not, where tenants are dealt by a table.
    """
    first = _cluster(f"{protocol}={'+'.join(servers)}", protocol, balance, [u for u in upstreams if u.name in servers])
    first["load_assignment"]["policy"] = {"overprovisioning_factor": _WHILE_ANY}
    parts = {"@type": f"type.googleapis.com/{_PARTS}", "clusters": [first["name"], protocol]}
    either = {
        "name": cluster_name(protocol, servers),
        "connect_timeout": _CONNECT,
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": parts},
        "circuit_breakers": {"thresholds": [_limits()]},
    }
    return [first, either]


def cluster_name(protocol: Protocol, servers: Servers) -> str:
    """Name the cluster that requests for these servers, or for any, are sent to."""
    return f"{protocol}:{'+'.join(servers)}" if servers else protocol


def _cluster(name: str, protocol: Protocol, balance: int, upstreams: Sequence[Upstream]) -> dict[str, Any]:
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
            "consistent_hashing_lb_config": {"hash_balance_factor": balance} if balance else {},
        },
        "circuit_breakers": {"thresholds": [_limits()]},
        "health_checks": [_health_check()],
        "upstream_connection_options": {
            # For a machine that vanishes without a word.
            "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 1, "keepalive_interval": 1}
        },
        "typed_extension_protocol_options": {_OPTIONS: _to(protocol)},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [_endpoint(each, getattr(each, protocol)) for each in upstreams]}],
        },
    }


def _limits() -> dict[str, int]:
    return dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _MANY)


def _to(protocol: Protocol) -> dict[str, Any]:
    options = "http_protocol_options" if protocol == "http" else "http2_protocol_options"
    return {"@type": f"type.googleapis.com/{_OPTIONS}", "explicit_http_config": {options: {}}}


def _health_check() -> dict[str, Any]:
    return {
        "timeout": "1s",
        "interval": _HEALTH_EVERY,
        # Else servers that nobody has asked yet are looked at once a minute.
        "no_traffic_interval": _HEALTH_EVERY,
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
