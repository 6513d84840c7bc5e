"""Whom a client trusts that is told to trust the system's authorities."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import grpc
import pytest

from certificates import Authority
from hplm_client import AsyncHplmClient, HplmClient
from hplm_client.authorities import system_authorities
from small_servers import small_server
from waiting import LIMIT_S

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def credentials(authority: Authority) -> grpc.ServerCredentials:
    certificate, key = authority.sign("server")
    return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])


@pytest.fixture(params=["file", "folder"])
def trusted(
    request: pytest.FixtureRequest, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make the authority one of the system's."""
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    folder = tmp_path / "authorities"
    folder.mkdir()
    in_file = request.param == "file"
    if not in_file:
        shutil.copy(authority.certificate, folder / "0123abcd.0")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate if in_file else folder / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))


@pytest.mark.usefixtures("trusted")
async def test_the_systems_authorities_are_trusted_over_grpc(credentials: grpc.ServerCredentials) -> None:
    with small_server("grpc", credentials=credentials) as server:
        with HplmClient(server.url, ssl=True, timeout_s=LIMIT_S) as client:
            assert client.infer("acme/x", "text").version == 1
        async with AsyncHplmClient(server.url, ssl=True, timeout_s=LIMIT_S) as client_of_loop:
            assert (await client_of_loop.infer("acme/x", "text")).version == 1


def test_grpcs_own_variable_goes_first(
    authority: Authority, credentials: grpc.ServerCredentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read by gRPC, once in a process; so all that is seen here is that gRPC gets no others."""
    given: list[bytes | None] = []
    make = grpc.ssl_channel_credentials

    def noted(roots: bytes | None, *own: bytes | None) -> grpc.ChannelCredentials:
        given.append(roots)
        return make(roots, *own)

    monkeypatch.setattr(grpc, "ssl_channel_credentials", noted)
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(authority.certificate))
    HplmClient("grpc://127.0.0.1:1", ssl=True).close()
    HplmClient("grpc://127.0.0.1:1", ssl=str(authority.certificate)).close()
    assert given == [None, authority.certificate.read_bytes()]


def test_each_authority_is_given_once(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = authority.certificate.read_bytes()
    both = tmp_path / "both.pem"
    both.write_bytes(b"# of the system\n" + content + content)
    monkeypatch.setenv("SSL_CERT_FILE", str(both))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    assert system_authorities() == content.strip()


def test_authorities_that_lie_in_no_file_are_given_too(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where Python loads them from the system's store."""
    loaded = ssl.create_default_context(cafile=str(authority.certificate))
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setattr(ssl, "create_default_context", lambda: loaded)
    assert system_authorities() == authority.certificate.read_bytes().strip() + b"\n"
