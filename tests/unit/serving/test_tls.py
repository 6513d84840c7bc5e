"""The certificates of a server and of a client, before anything listens."""

from __future__ import annotations

import shutil
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError
from builder.serving import Ports, ServerConfig
from builder.serving.config import server_arguments
from builder.serving.tls import Tls, tls_of
from certificates import Authority
from hplm_client import Certificates, ConnectionFailedError, HplmClient, InvalidRequestError, environment

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_triton_gets_its_flags_and_http_stays_on_this_machine(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("server")
    tls = tls_of(certificate, key, authority.certificate)
    config = ServerConfig(repository=tmp_path, address="0.0.0.0", tls=tls)
    arguments = server_arguments(config, Ports(1, 2, 3), tmp_path, "x", "key")
    assert {
        "--http-address=127.0.0.1",
        "--grpc-address=0.0.0.0",
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={certificate}",
        f"--grpc-server-key={key}",
        f"--grpc-root-cert={authority.certificate}",
    } <= set(arguments)
    config = ServerConfig(repository=tmp_path, address="0.0.0.0")
    plain = server_arguments(config, Ports(1, 2, 3), tmp_path, "x", "key")
    assert "--http-address=0.0.0.0" in plain and not any("ssl" in argument for argument in plain)
    assert tls_of(None, None, None) is None


def test_wrong_files_of_a_server_are_told(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("one")
    other_key = authority.sign("two")[1]
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for files, words in (
        ((certificate, tmp_path / "none", None), "there is no file"),
        ((certificate, other_key, None), "are no certificate and its key"),
        ((garbage, key, None), "are no certificate and its key"),
        ((certificate, key, garbage), "holds no certificates in PEM"),
        ((certificate, None, None), "TLS needs both"),
        ((None, None, authority.certificate), "TLS needs both"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            tls_of(*files)
    assert Tls(certificate, key).client_ca is None


def test_wrong_files_of_a_client_are_told(authority: Authority, tmp_path: Path) -> None:
    certificate = str(authority.sign("client")[0])
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for ca, own, own_key, words in (
        (str(tmp_path / "none"), None, None, "cannot be read"),
        (str(garbage), None, None, "cannot be used"),
        (None, certificate, None, "needs its key"),
        (None, certificate, str(garbage), "cannot be used"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            Certificates(ca, own, own_key)


def test_certificates_come_from_the_environment(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (environment.CA_VARIABLE, environment.CERTIFICATE_VARIABLE, environment.KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert environment.ssl() is None
    monkeypatch.setenv(environment.CA_VARIABLE, str(authority.certificate))
    assert environment.ssl() == Certificates(str(authority.certificate))


def test_http_behind_a_gateway_is_encrypted_too(authority: Authority) -> None:
    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("gateway"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with HplmClient(url, ssl=str(authority.certificate)) as client:
            assert client.is_ready() and client.is_ready()
        unknown = pytest.raises(ConnectionFailedError, match="certificate")
        with HplmClient(url, ssl=True, retries=0) as client, unknown:
            client.infer("acme/topic", "cat")
    finally:
        server.shutdown()
        server.server_close()
