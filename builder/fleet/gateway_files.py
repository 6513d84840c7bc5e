"""The part of a gateway's configuration that may change while it runs: files that Envoy reads anew when they do.

Files of another name take the place of the old ones, which is what Envoy looks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.fleet.clusters import cluster_name, group_clusters, num_retries
from builder.fleet.gateway_tls import secrets
from builder.fleet.routes import HPLM_HEADER, PROTOCOLS, Protocol, virtual_host
from builder.fleet.routing import ANY, Routing, Servers
from builder.fleet.upstream import Upstream
from builder.serving.tls import Tls

_API = "type.googleapis.com/envoy"
_BY_HPLM = "by_hplm"
_SPECIFIER = "envoy.router.cluster_specifier_plugin.matcher"
_SPECIFIERS = f"{_API}.extensions.router.cluster_specifiers.matcher.v3"


class GatewayFiles:
    """Files of one gateway, in its private folder; `balance` as in `GatewaySettings`."""

    def __init__(self, folder: Path, balance: int, upstreams: Sequence[Upstream]) -> None:
        self._folder, self._balance, self._upstreams = folder, balance, upstreams

    def clusters_source(self) -> dict[str, Any]:
        """Return where Envoy is to look for clusters beside those of all servers."""
        return {"cds_config": _source(self._clusters)}

    def routes_source(self, protocol: Protocol) -> dict[str, Any]:
        """Return where the listener of a protocol is to look for its routes."""
        return {"rds": {"route_config_name": protocol, "config_source": _source(self._routes(protocol))}}

    def secret_source(self, name: str) -> dict[str, Any]:
        """Return where a listener is to look for a secret of `gateway_tls`."""
        return _source(self._secret(name))

    def write_clusters(self, groups: Sequence[Servers]) -> list[str]:
        """Write the clusters of each protocol for each group of servers; returns their names."""
        made = [
            cluster
            for protocol in PROTOCOLS
            for cluster in group_clusters(protocol, self._balance, self._upstreams, groups)
        ]
        _write(self._clusters, "config.cluster.v3.Cluster", made)
        return [each["name"] for each in made]

    def write_routes(self, routing: Routing) -> None:
        """Write whom requests go to; all clusters that are named have to be known."""
        retries = num_retries(self._balance, self._upstreams)
        for protocol in PROTOCOLS:
            routes = _routes(protocol, routing, retries)
            _write(self._routes(protocol), "config.route.v3.RouteConfiguration", [routes])

    def write_secrets(self, tls: Tls) -> None:
        """Write which files hold certificates and keys; Envoy reads those files."""
        for name, secret in secrets(tls).items():
            _write(self._secret(name), "extensions.transport_sockets.tls.v3.Secret", [secret])

    @property
    def _clusters(self) -> Path:
        return self._folder / "clusters.json"

    def _routes(self, protocol: Protocol) -> Path:
        return self._folder / f"{protocol}.json"

    def _secret(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _source(path: Path) -> dict[str, Any]:
    return {"resource_api_version": "V3", "path_config_source": {"path": str(path)}}


def _write(path: Path, kind: str, resources: Sequence[Mapping[str, Any]]) -> None:
    new = path.with_suffix(".new")
    typed = [{"@type": f"{_API}.{kind}", **each} for each in resources]
    new.write_text(json.dumps({"resources": typed}), encoding="utf-8")
    new.replace(path)


def _routes(protocol: Protocol, routing: Routing, retries: int) -> dict[str, Any]:
    if not routing.groups:
        return {"name": protocol, "virtual_hosts": [virtual_host(protocol, retries)]}
    matcher = {"@type": f"{_SPECIFIERS}.MatcherClusterSpecifier", "cluster_matcher": _matcher(protocol, routing)}
    return {
        "name": protocol,
        "cluster_specifier_plugins": [{"extension": {"name": _SPECIFIER, "typed_config": matcher}}],
        "virtual_hosts": [virtual_host(protocol, retries, _SPECIFIER)],
    }


def _matcher(protocol: Protocol, routing: Routing) -> dict[str, Any]:
    """Look an hPLM up among those that are named, then its tenant, and else ask any server."""
    found: dict[str, Any] = {"on_no_match": _ask(protocol, ANY)}
    tenants = {f"{tenant}/": servers for tenant, servers in routing.of_tenant.items()}
    for kind, servers_of in (("prefix_match_map", tenants), ("exact_match_map", routing.of_hplm)):
        if servers_of:
            tree = {"map": {name: _ask(protocol, servers) for name, servers in servers_of.items()}}
            known = {"matcher_tree": {"input": _hplm(), kind: tree}}
            found = {**known, "on_no_match": found["on_no_match"] if len(found) == 1 else {"matcher": found}}
    return found


def _hplm() -> dict[str, Any]:
    kind = f"{_API}.type.matcher.v3.HttpRequestHeaderMatchInput"
    return {"name": _BY_HPLM, "typed_config": {"@type": kind, "header_name": HPLM_HEADER}}


def _ask(protocol: Protocol, servers: Servers) -> dict[str, Any]:
    action = {"@type": f"{_SPECIFIERS}.ClusterAction", "cluster": cluster_name(protocol, servers)}
    return {"action": {"name": "ask", "typed_config": action}}
