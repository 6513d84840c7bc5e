"""From typed settings to the command line of tritonserver."""

import pytest

from backends.errors import InvalidArgumentError
from builder.serving.config import Ports, ServerConfig, server_arguments


def arguments(tmp_path, **settings):
    config = ServerConfig(repository=tmp_path / "repository", **settings)
    return server_arguments(config, Ports(http=1, grpc=2, metrics=3), tmp_path / "backends", "prefix-", "key")


def test_default_arguments(tmp_path):
    assert arguments(tmp_path) == [
        f"--model-repository={tmp_path}/repository",
        f"--backend-directory={tmp_path}/backends",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
        "--http-thread-count=8",
        "--http-restricted-api=shared-memory,model-repository,trace,logging:hplm-admin-key=key",
        "--grpc-restricted-protocol=shared-memory,model-repository,trace,logging:hplm-admin-key=key",
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--model-control-mode=none",
        "--backend-config=python,shm-region-prefix-name=prefix-",
        "--backend-config=python,shm-default-byte-size=1048576",
        "--backend-config=python,shm-growth-byte-size=1048576",
        "--backend-config=python,stub-timeout-seconds=120",
        "--exit-timeout-secs=10",
        "--log-verbose=0",
    ]


def test_every_setting_reaches_the_command_line(tmp_path):
    found = arguments(
        tmp_path,
        address="0.0.0.0",
        metrics_address="10.0.0.1",
        log_verbose=2,
        exit_timeout_s=3,
        extra_arguments=("--rate-limit=off",),
    )
    assert {
        "--http-address=0.0.0.0",
        "--metrics-address=10.0.0.1",
        "--log-verbose=2",
        "--exit-timeout-secs=3",
        "--rate-limit=off",
    } <= set(found)


def test_a_relative_repository_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ServerConfig(repository=(tmp_path / "repository").relative_to(tmp_path))
    first = server_arguments(config, Ports(1, 2, 3), tmp_path, "p", "k")[0]
    assert first == f"--model-repository={tmp_path}/repository"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"http_port": 0}, "port 0"),
        ({"grpc_port": 70_000}, "port 70000"),
        ({"http_port": 8000, "metrics_port": 8000}, "port 8000 is given twice"),
        ({"max_log_bytes": 4096}, "1 MiB"),
        ({"ready_timeout_s": 0}, "positive"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, settings, words):
    with pytest.raises(InvalidArgumentError, match=words):
        ServerConfig(repository=tmp_path, **settings)


@pytest.mark.parametrize("address", ["localhost", "::1", "::", "", "..", "127.0.0", "a" * 70, "127.0.0.1 "])
def test_what_triton_cannot_listen_on_is_refused(tmp_path, address):
    for settings in ({"address": address}, {"metrics_address": address}):
        with pytest.raises(InvalidArgumentError, match="IPv4 address, such as 127"):
            ServerConfig(repository=tmp_path, **settings)
