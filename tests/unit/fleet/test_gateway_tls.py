"""The real Envoy with certificates: both protocols, with and without a client's own."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from builder.fleet.gateway import Gateway
from builder.fleet.gateway_config import GatewaySettings
from builder.fleet.gateway_program import find_gateway
from builder.serving.ports import ClaimedPorts
from builder.serving.tls import Tls
from certificates import Authority
from stand_in_servers import INFER_METHOD, INFER_PATH, StandIn
from waiting import LIMIT_S, wait_until

_NOTICE_S = 0.5
"""Enough for Envoy to see a new file."""


class Encrypted:
    """A gateway with TLS before one server, and who may ask it."""

    def __init__(self, settings: GatewaySettings, authority: Authority) -> None:
        self.settings, self.authority = settings, authority
        self.of_client = authority.sign("client")

    def http(self, with_certificate: bool) -> str:
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if with_certificate:
            context.load_cert_chain(*self.of_client)
        connection = http.client.HTTPSConnection("127.0.0.1", self.settings.http, timeout=LIMIT_S, context=context)
        try:
            connection.request("POST", INFER_PATH, b"x", {"x-hplm": "acme/area"})
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def is_answered(self) -> bool:
        """Whether a client with a certificate is."""
        try:
            return self.http(True) == "server-1"
        except (ssl.SSLError, ConnectionError):
            return False

    def shown_certificate(self) -> bytes:
        """The gateway's own, as clients see it."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        context.load_cert_chain(*self.of_client)
        with (
            socket.create_connection(("127.0.0.1", self.settings.http), LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            return encrypted.getpeercert(binary_form=True) or b""

    def grpc(self, with_certificate: bool) -> str:
        certificate, key = (path.read_bytes() for path in self.of_client) if with_certificate else (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority.certificate.read_bytes(), key, certificate)
        with grpc.secure_channel(f"127.0.0.1:{self.settings.grpc}", credentials) as channel:
            ask = channel.unary_unary(INFER_METHOD)
            return str(ask(b"x", timeout=LIMIT_S, metadata=[("x-hplm", "acme/area")]).decode())


@pytest.fixture(params=[False, True], ids=["any client", "clients with certificates"])
def encrypted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Encrypted]:
    authority, server = Authority(tmp_path), StandIn("server-1")
    certificate, key = authority.sign("server")
    client_ca = shutil.copy(authority.certificate, tmp_path / "clients.pem") if request.param else None
    tls = Tls(certificate, key, client_ca)
    ports = ClaimedPorts.take([("127.0.0.1", None)] * 2)
    settings = GatewaySettings(http=ports.numbers[0], grpc=ports.numbers[1], tls=tls)
    gateway = Gateway(find_gateway(), settings, [server.upstream], tmp_path / "gateway.log")
    gateway.start()
    try:
        gateway.wait_ready()
        admin = gateway.admin
        assert admin is not None
        wait_until(lambda: all(each.is_healthy for each in admin.routed().values()))
        yield Encrypted(settings, authority)
    finally:
        gateway.stop()
        ports.release()
        server.close()


def test_renewed_certificates_are_taken_while_it_runs(encrypted: Encrypted, tmp_path: Path) -> None:
    tls = encrypted.settings.tls
    assert tls is not None
    first = encrypted.shown_certificate()
    certificate, key = encrypted.authority.sign("renewed")
    renewed = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    key.replace(tls.key)  # which is not that of the old certificate
    time.sleep(_NOTICE_S)
    assert encrypted.shown_certificate() == first != renewed
    certificate.replace(tls.certificate)
    wait_until(lambda: encrypted.shown_certificate() == renewed)
    assert (encrypted.http(True), encrypted.grpc(True)) == ("server-1", "server-1")
    if tls.client_ca is None:
        return
    other = Authority(tmp_path, "other")
    encrypted.of_client = other.sign("client")
    assert not encrypted.is_answered()
    other.certificate.replace(tls.client_ca)
    wait_until(encrypted.is_answered)


def test_both_ports_are_encrypted(encrypted: Encrypted) -> None:
    assert (encrypted.http(True), encrypted.grpc(True)) == ("server-1", "server-1")
    plain = http.client.HTTPConnection("127.0.0.1", encrypted.settings.http, timeout=LIMIT_S)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain.request("POST", INFER_PATH, b"x", {"x-hplm": "acme/area"})
        plain.getresponse()
    plain.close()
    tls = encrypted.settings.tls
    assert tls is not None
    if tls.client_ca is None:
        assert (encrypted.http(False), encrypted.grpc(False)) == ("server-1", "server-1")
        return
    with pytest.raises((ssl.SSLError, ConnectionError)):
        encrypted.http(False)
    with pytest.raises(grpc.RpcError) as caught:
        encrypted.grpc(False)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
