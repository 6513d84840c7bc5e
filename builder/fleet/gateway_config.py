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
from builder.fleet.clusters import all_clusters, num_retries
from builder.fleet.gateway_files import GatewayFiles
from builder.fleet.gateway_tls import tls_context
from builder.fleet.routes import MAX_REQUEST_BYTES, PROTOCOLS, Protocol, virtual_host
from builder.fleet.upstream import Upstream
from builder.serving.config import MAX_PORT
from builder.serving.tls import Tls

_TYPES = "type.googleapis.com/envoy.extensions"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
_MAX_CONNECTIONS = 50_000
_MANY = 1_000_000
_CODECS: Mapping[Protocol, Mapping[str, Any]] = {
    "http": {"codec_type": "HTTP1"},
    "grpc": {
        "codec_type": "HTTP2",
        # Envoy cuts a connection, with all that it holds, where a thousand of its requests were given up, and more than
        # 33 a second since then: clients whose deadlines a server misses do that. It would also hold all requests but
        # the first 1,024 of a connection back in the client, unseen.
        "http2_protocol_options": dict.fromkeys(
            ("max_concurrent_streams", "stream_reset_burst", "stream_reset_rate"), _MANY
        ),
    },
}
_RUNTIME = {
    # Envoy also cuts a connection where half of its requests, and 500 at least, were given up before this age in whole
    # seconds. By its default of 1 that would still be clients with deadlines of less than a second, which wait for a
    # second beyond them; those that attack wait for nothing.
    "overload.premature_reset_min_stream_lifetime_seconds": 0,
}
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


def gateway_config(
    settings: GatewaySettings, upstreams: Sequence[Upstream], files: GatewayFiles | None = None
) -> dict[str, Any]:
    """Return Envoy's whole configuration.

    With `files` it takes its routes, clusters beside those of all servers, and certificates from there, whenever they
    change.

    Raises:
        InvalidArgumentError: There is no server, or a name or an address with its port is given twice.
    """
    _check(upstreams)
    document: dict[str, Any] = {
        "static_resources": {
            "listeners": [_listener(protocol, settings, upstreams, files) for protocol in PROTOCOLS],
            "clusters": [
                each for protocol in PROTOCOLS for each in all_clusters(protocol, settings.balance, upstreams)
            ],
        },
        "overload_manager": {"resource_monitors": [_typed(_CONNECTIONS, _most_connections())]},
        "layered_runtime": {"layers": [{"name": "static", "static_layer": _RUNTIME}]},
    }
    if files is not None:
        document |= {"node": dict.fromkeys(("id", "cluster"), "hplm"), "dynamic_resources": files.clusters_source()}
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


def _listener(
    protocol: Protocol, settings: GatewaySettings, upstreams: Sequence[Upstream], files: GatewayFiles | None
) -> dict[str, Any]:
    port = settings.http if protocol == "http" else settings.grpc
    static = {"route_config": {"virtual_hosts": [virtual_host(protocol, num_retries(settings.balance, upstreams))]}}
    manager = _manager(protocol, static if files is None else files.routes_source(protocol))
    chain: dict[str, Any] = {"filters": [_typed("envoy.filters.network.http_connection_manager", manager)]}
    if settings.tls is not None:
        context = tls_context(settings.tls, protocol, None if files is None else files.secret_source)
        chain["transport_socket"] = _typed("envoy.transport_sockets.tls", context)
    return {
        "name": protocol,
        "address": {"socket_address": {"address": settings.address, "port_value": port}},
        "filter_chains": [chain],
    }


def _manager(protocol: Protocol, routes: Mapping[str, Any]) -> dict[str, Any]:
    buffer = {"@type": f"{_TYPES}.filters.http.buffer.v3.Buffer", "max_request_bytes": MAX_REQUEST_BYTES}
    router = {"@type": f"{_TYPES}.filters.http.router.v3.Router", "suppress_envoy_headers": True}
    return {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": protocol,
        **_CODECS[protocol],
        **routes,
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


def _typed(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "typed_config": config}
