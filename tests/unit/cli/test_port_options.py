"""Ports that options name: messages speak of the options that the user gave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from cli.ports import require_server_ports

BY_DEFAULT = "--health-port, by default the one after --metrics"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--metrics", "65535"), f"{BY_DEFAULT}: 65536 is no port; give 1 to 65535, or 0 for a free one"),
        (("--metrics", "70000"), "--metrics: 70000 is no port"),
        (("--http", "-1"), "--http: -1 is no port"),
        (("--health-port", "65536"), "--health-port: 65536 is no port"),
        (("--http", "8003"), f"port 8003 is given twice, as --http and as {BY_DEFAULT}; each needs its own"),
        (("--grpc", "8000"), "port 8000 is given twice, as --http and as --grpc; each needs its own"),
        (("--health-port", "8001"), "port 8001 is given twice, as --grpc and as --health-port; each needs its own"),
    ],
)
def test_ports_of_a_server_that_cannot_be(
    run_hplm: Callable[..., str], tiny_home: Home, options: tuple[str, ...], message: str
) -> None:
    assert run_hplm("serve", "--home", tiny_home.path, *options).startswith(f"hplm: {message}")
    assert not tiny_home.repository.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--http", "8003"), "port 8003 is given twice, as --http and as --health-port; each needs its own"),
        (("--grpc", "65536"), "--grpc: 65536 is no port; give 1 to 65535, or 0 for a free one"),
        (("--first-port", "65530"), "the servers' ports, from --first-port 65530 to 65549, are not between"),
    ],
)
def test_ports_of_a_fleet_that_cannot_be(
    run_hplm: Callable[..., str], tiny_home: Home, options: tuple[str, ...], message: str
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    assert run_hplm("fleet", "serve", "--home", tiny_home.path, *options).startswith(f"hplm: {message}")


def test_the_port_of_the_probes() -> None:
    assert require_server_ports(8000, 8001, 8002, None) == 8003
    assert require_server_ports(8000, 8001, 65535, 65534) == 65534
    assert require_server_ports(8000, 8001, 65535, 0) is None
    assert require_server_ports(0, 0, 0, None) is None
