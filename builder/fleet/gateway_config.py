"""The configuration of Envoy, the gateway, as a JSON document.

Usage:
    document = gateway_config(GatewaySettings(), upstreams)
    path.write_text(json.dumps(document, indent=2))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.errors import InvalidArgumentError
from builder.fleet.routes import MAX_REQUEST_BYTES, Protocol, virtual_host
from builder.fleet.upstream import Upstream
from builder.serving.config import MAX_PORT
from builder.serving.tls import Tls

_TYPES = "type.googleapis.com/envoy.extensions"
_MANY = 1_000_000
"""Envoy's own limit of 1,024 requests to a server would reject before the server does."""
_HEALTH_EVERY = "0.25s"
"""A draining server says 503 for a second before it rejects requests; that has to be seen meanwhile."""
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
_MAX_CONNECTIONS = 50_000
_IDLE = "900s"
_REQUEST = "60s"
"""Time for a client to send a whole request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a gateway listens on, and how it deals tenants to servers.

    Attributes:
        address: Of both public ports.
        http: The public port.
        grpc: The public port.
        balance: Open requests of a server over the mean of all, in percent, beyond which a tenant's requests go to
            another server; 0 for without such a bound.
        tls: Encrypts both ports.
        admin_socket: Where Envoy answers questions about itself; without it, nowhere.
    """

    address: str = "127.0.0.1"
    http: int = 8000
    grpc: int = 8001
    balance: int = 125
    tls: Tls | None = None
    admin_socket: Path | None = None

    def __post_init__(self) -> None:
        for port in (self.http, self.grpc):
            if not 0 < port <= MAX_PORT:
                raise InvalidArgumentError(f"port {port} is not between 1 and {MAX_PORT}")
        if self.http == self.grpc:
            raise InvalidArgumentError(f"port {self.http} is given twice; HTTP and gRPC need one each")
        if self.balance != 0 and self.balance < 100:
            raise InvalidArgumentError(f"a balance of {self.balance} % cannot be kept: give 100 or more, or 0 for none")


def gateway_config(settings: GatewaySettings, upstreams: Sequence[Upstream]) -> dict[str, Any]:
    """Return Envoy's whole configuration.

    Raises:
        InvalidArgumentError: There is no server, or a name or an address with its port is given twice.
    """
    _check(upstreams)
    document: dict[str, Any] = {
        "static_resources": {
            "listeners": [_listener("http", settings.http, settings), _listener("grpc", settings.grpc, settings)],
            "clusters": [_cluster("http", settings, upstreams), _cluster("grpc", settings, upstreams)],
        },
        "overload_manager": {"resource_monitors": [_typed(_CONNECTIONS, _most_connections())]},
    }
    if settings.admin_socket is not None:
        # A socket with a mode, since whoever reaches it can end the gateway.
        document["admin"] = {"address": {"pipe": {"path": str(settings.admin_socket), "mode": 0o600}}}
    return document


def _check(upstreams: Sequence[Upstream]) -> None:
    if not upstreams:
        raise InvalidArgumentError("a gateway needs at least one server")
    seen: set[str] = set()
    for each in upstreams:
        places = {f"{each.address}:{port}" for port in (each.http, each.grpc, each.health)}
        if len(places) < 3:
            raise InvalidArgumentError(f"server {each.name}: HTTP, gRPC and health need a port each")
        for name in (each.name, *sorted(places)):
            if name in seen:
                raise InvalidArgumentError(f"{name} is given twice")
            seen.add(name)


def _most_connections() -> dict[str, Any]:
    return {
        "@type": f"{_TYPES}.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        "max_active_downstream_connections": _MAX_CONNECTIONS,
    }


def _listener(protocol: Protocol, port: int, settings: GatewaySettings) -> dict[str, Any]:
    chain: dict[str, Any] = {"filters": [_typed("envoy.filters.network.http_connection_manager", _manager(protocol))]}
    if settings.tls is not None:
        chain["transport_socket"] = _typed("envoy.transport_sockets.tls", _tls(settings.tls, protocol))
    return {
        "name": protocol,
        "address": {"socket_address": {"address": settings.address, "port_value": port}},
        "filter_chains": [chain],
    }


def _manager(protocol: Protocol) -> dict[str, Any]:
    buffer = {"@type": f"{_TYPES}.filters.http.buffer.v3.Buffer", "max_request_bytes": MAX_REQUEST_BYTES}
    router = {"@type": f"{_TYPES}.filters.http.router.v3.Router", "suppress_envoy_headers": True}
    return {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": protocol,
        "codec_type": "HTTP1" if protocol == "http" else "HTTP2",
        "route_config": {"virtual_hosts": [virtual_host(protocol)]},
        "early_header_mutation_extensions": [_typed("envoy.http.early_header_mutation.header_mutation", _unheard())],
        "generate_request_id": False,
        "stream_idle_timeout": _IDLE,
        "request_timeout": _REQUEST,
        "local_reply_config": {"body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}},
        # Triton gets a request only once its body is whole and within the limit.
        "http_filters": [_typed("envoy.filters.http.buffer", buffer), _typed("envoy.filters.http.router", router)],
    }


def _unheard() -> dict[str, Any]:
    """No caller may say by such headers what is tried again, or for how long."""
    return {
        "@type": f"{_TYPES}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        "mutations": [{"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}}],
    }


def _tls(tls: Tls, protocol: Protocol) -> dict[str, Any]:
    common: dict[str, Any] = {
        "alpn_protocols": ["http/1.1" if protocol == "http" else "h2"],
        "tls_certificates": [{"certificate_chain": _file(tls.certificate), "private_key": _file(tls.key)}],
    }
    if tls.client_ca is not None:
        common["validation_context"] = {"trusted_ca": _file(tls.client_ca)}
    return {
        "@type": f"{_TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": tls.client_ca is not None,
    }


def _file(path: Path) -> dict[str, Any]:
    return {"filename": str(path.absolute())}


def _cluster(protocol: Protocol, settings: GatewaySettings, upstreams: Sequence[Upstream]) -> dict[str, Any]:
    balance = {"hash_balance_factor": settings.balance} if settings.balance else {}
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _MANY)
    return {
        "name": protocol,
        "type": "STATIC" if all(each.is_numeric for each in upstreams) else "STRICT_DNS",
        "connect_timeout": "1s",
        # Its table deals tenants evenly, and a lost server moves hardly any but its own. Envoy's ring would move a
        # sixth of the others' where one of three is lost, as the remaining ones then get more entries each.
        "lb_policy": "MAGLEV",
        "common_lb_config": {
            # Else Envoy asks all servers, ready or not, as soon as half of them are not.
            "healthy_panic_threshold": {"value": 0},
            "consistent_hashing_lb_config": balance,
        },
        "circuit_breakers": {"thresholds": [limits]},
        "health_checks": [_health_check()],
        "upstream_connection_options": {
            # For a machine that vanishes without a word.
            "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 1, "keepalive_interval": 1}
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _to(protocol)},
        "load_assignment": {
            "cluster_name": protocol,
            "endpoints": [{"lb_endpoints": [_endpoint(each, getattr(each, protocol)) for each in upstreams]}],
        },
    }


def _to(protocol: Protocol) -> dict[str, Any]:
    options = "http_protocol_options" if protocol == "http" else "http2_protocol_options"
    return {
        "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {options: {}},
    }


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


def _typed(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "typed_config": config}
