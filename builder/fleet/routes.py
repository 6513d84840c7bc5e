"""What the gateway lets through: what clients of the ensemble `hplm` need, and nothing that administers a server.

A request goes to the server that its tenant's part of `x-hplm` hashes to; without that header, to any. A
rejection is an answer. Only a broken connection is tried again, at last on another server: a request that ends its
server meets two of them at most. Of two servers with a bound on load the first retry may go to the same one, and the
second goes to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

HPLM_HEADER = "x-hplm"
MAX_REQUEST_BYTES = 17 << 20
"""A little more than `hplm_lower` takes, so that its own words reach the client."""
_TENANT = r"^([^/]*)/.*$"
_MANY = 100
_SERVICE = "/inference.GRPCInferenceService"
_METHODS = ("ModelInfer", "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata")
_OF_MODEL = "/v2/models/hplm"
_PATHS = {
    "POST": (f"{_OF_MODEL}/infer", f"{_OF_MODEL}/generate"),
    "GET": ("/v2", "/v2/health/live", "/v2/health/ready", _OF_MODEL, f"{_OF_MODEL}/ready"),
}
_CLOSED = "the gateway passes inference on the model hplm, and questions whether it is ready; nothing else"
_OTHER_PRIORITY = {
    "name": "envoy.retry_priorities.previous_priorities",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
        "update_frequency": 1,
    },
}

Protocol = Literal["http", "grpc"]
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")


def virtual_host(protocol: Protocol, num_retries: int, specifier: str | None = None) -> dict[str, Any]:
    """Return the routes of one protocol's public port.

    They lead to the cluster of the protocol's name, or where the cluster specifier of this name says. A request whose
    connection broke is tried again so often.
    """
    to = {"cluster": protocol} if specifier is None else {"cluster_specifier_plugin": specifier}
    route = _route(to, num_retries)
    if protocol == "grpc":
        allowed = [{"path": f"{_SERVICE}/{method}", "headers": [_method_is("POST")]} for method in _METHODS]
    else:
        allowed = [{"path": path, "headers": [_method_is(method)]} for method, path in _method_paths(_PATHS.items())]
    closed = {"match": {"prefix": "/"}, "direct_response": {"status": 404, "body": {"inline_string": _CLOSED}}}
    return {
        "name": protocol,
        "domains": ["*"],
        "request_body_buffer_limit": MAX_REQUEST_BYTES,
        "routes": [*({"match": match, "route": route} for match in allowed), closed],
    }


def _method_paths(paths: Iterable[tuple[str, tuple[str, ...]]]) -> list[tuple[str, str]]:
    return [(method, path) for method, of_method in paths for path in of_method]


def _method_is(method: str) -> dict[str, Any]:
    return {"name": ":method", "string_match": {"exact": method}}


def _route(to: Mapping[str, Any], num_retries: int) -> dict[str, Any]:
    return {
        **to,
        "timeout": "0s",  # a deadline is the server's affair; Envoy's own would be 15 s
        "hash_policy": [
            {
                "header": {
                    "header_name": HPLM_HEADER,
                    "regex_rewrite": {"pattern": {"regex": _TENANT}, "substitution": r"\1"},
                }
            }
        ],
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset",
            "num_retries": num_retries,
            "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.02s"},
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": "type.googleapis.com/"
                        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                    },
                }
            ],
            # Another hash may lead to the same server.
            "host_selection_retry_max_attempts": _MANY,
            # Of a cluster made of clusters, the next one.
            "retry_priority": _OTHER_PRIORITY,
        },
    }
