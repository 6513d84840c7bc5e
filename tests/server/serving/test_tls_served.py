"""gRPC with certificates on both sides, by Triton's own flags."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder.serving.canary import Canary
from certificates import Authority
from hplm_client import AsyncHplmClient, Certificates, ClientError, HplmClient
from served_home import Served

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]


@pytest.fixture(scope="module")
def own(authority: Authority) -> Certificates:
    certificate, key = map(str, authority.sign("client"))
    return Certificates(str(authority.certificate), certificate, key)


async def test_clients_with_a_certificate_are_answered(served_bf16: Served, own: Certificates) -> None:
    url = f"grpc://{served_bf16.grpc_url}"
    with HplmClient(url, ssl=own) as client:
        assert client.is_ready()
        assert client.infer("acme/topic", "cat").hplm == "acme/topic"
    async with AsyncHplmClient(url, ssl=own) as asyncio_client:
        assert (await asyncio_client.infer("acme/topic", "cat")).hplm == "acme/topic"
    with HplmClient(f"http://{served_bf16.http_url}") as plain:
        assert plain.infer("acme/topic", "cat").hplm == "acme/topic"


def test_others_are_not(served_bf16: Served, own: Certificates, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    certificate, key = map(str, stranger.sign("client"))
    wrong = {
        "no TLS": None,
        "no certificate": own.ca,
        "a stranger's certificate": Certificates(own.ca, certificate, key),
        "another authority": Certificates(str(stranger.certificate), own.certificate, own.key),
    }
    for ssl in wrong.values():
        with HplmClient(f"grpc://{served_bf16.grpc_url}", ssl=ssl, retries=0, timeout_s=3) as client:
            assert not client.is_ready()
            with pytest.raises(ClientError) as caught:
                client.infer("acme/topic", "cat")
            assert "\n" not in str(caught.value)


def test_the_canary_greets_a_port_whose_certificates_it_lacks(served_bf16: Served) -> None:
    canary = Canary(served_bf16.http_url, served_bf16.grpc_url, lambda: ["acme/topic"], "", has_tls=True)
    assert canary.wait_for_first(30)
    canary.close()
    assert canary.complaints() == []


def test_the_command_reads_its_certificates_from_the_environment(
    served_bf16: Served, own: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in (("HPLM_CA", own.ca), ("HPLM_CERT", own.certificate), ("HPLM_KEY", own.key)):
        monkeypatch.setenv(name, str(path))
    hplm = Path(sys.executable).with_name("hplm")
    command = [hplm, "infer", "acme/topic", "cat", "--url", f"grpc://{served_bf16.grpc_url}", "--json"]
    assert '"acme/topic"' in subprocess.run(command, capture_output=True, text=True, check=True).stdout
