"""TLS of a gateway's public ports.

Certificates that Envoy has from files of their own (`secrets`) are read anew when others are renamed into their place;
those that stand in its configuration are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from builder.fleet.routes import Protocol
from builder.serving.tls import Tls

CERTIFICATE, CLIENT_CA = "certificate", "client_ca"
"""Names of secrets."""


def tls_context(
    tls: Tls, protocol: Protocol, source_of: Callable[[str], Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the encryption of one protocol's port; `source_of` says where Envoy finds a secret, by its name."""
    common: dict[str, Any] = {"alpn_protocols": ["http/1.1" if protocol == "http" else "h2"]}
    if source_of is None:
        common["tls_certificates"] = [_certificate(tls)]
        if tls.client_ca is not None:
            common["validation_context"] = _validation(tls.client_ca)
    else:
        common["tls_certificate_sds_secret_configs"] = [_taken_from(source_of, CERTIFICATE)]
        if tls.client_ca is not None:
            common["validation_context_sds_secret_config"] = _taken_from(source_of, CLIENT_CA)
    return {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": tls.client_ca is not None,
    }


def secrets(tls: Tls) -> dict[str, dict[str, Any]]:
    """Return the secrets by their names; each needs a file of its own."""
    made: dict[str, dict[str, Any]] = {CERTIFICATE: {"name": CERTIFICATE, "tls_certificate": _certificate(tls)}}
    if tls.client_ca is not None:
        made[CLIENT_CA] = {"name": CLIENT_CA, "validation_context": _validation(tls.client_ca)}
    return made


def _taken_from(source_of: Callable[[str], Mapping[str, Any]], name: str) -> dict[str, Any]:
    return {"name": name, "sds_config": source_of(name)}


def _certificate(tls: Tls) -> dict[str, Any]:
    return {"certificate_chain": _file(tls.certificate), "private_key": _file(tls.key)}


def _validation(client_ca: Path) -> dict[str, Any]:
    return {"trusted_ca": _file(client_ca)}


def _file(path: Path) -> dict[str, Any]:
    return {"filename": str(path.absolute())}
