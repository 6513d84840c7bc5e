"""Ports that options name: messages speak of the options that the user gave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backends.errors import InvalidArgumentError
from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from cli.ports import Listener, require_server_ports

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
    run_hplm: Callable[..., str],
    tiny_home: Home,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    capsys.readouterr()  # the first export of a run says that it builds the plugin
    assert run_hplm("fleet", "serve", "--home", tiny_home.path, *options).startswith(f"hplm: {message}")


def port_of_probes(
    http: int,
    metrics: int,
    health: int | None,
    address: str = "127.0.0.1",
    health_address: str = "127.0.0.1",
    metrics_address: str | None = None,
) -> int | None:
    served, metered = (Listener(address, http), Listener(address, 0)), Listener(metrics_address or address, metrics)
    return require_server_ports(*served, metered, health_address, health)


def test_the_port_of_the_probes() -> None:
    assert port_of_probes(8000, 8002, None) == 8003
    assert port_of_probes(8000, 65535, 65534) == 65534
    assert port_of_probes(8000, 65535, 0) is None
    assert port_of_probes(0, 0, None) is None


def test_probes_on_another_network_may_have_the_number_of_a_port() -> None:
    assert port_of_probes(8003, 8002, None, health_address="10.0.0.5") == 8003
    assert port_of_probes(8003, 8002, None, address="10.0.0.5") == 8003
    for address, health_address in (("0.0.0.0", "10.0.0.5"), ("10.0.0.5", "0.0.0.0"), ("10.0.0.5", "10.0.0.5")):
        with pytest.raises(InvalidArgumentError, match="port 8003 is given twice, as --http and as --health-port"):
            port_of_probes(8003, 8002, None, address, health_address)
    with pytest.raises(InvalidArgumentError, match="port 8003 is given twice, as --metrics and as --health-port"):
        port_of_probes(8000, 8003, 8003, address="10.0.0.5", metrics_address="127.0.0.1")
    with pytest.raises(InvalidArgumentError, match="as --http and as --metrics"):
        port_of_probes(8003, 8003, 8004, health_address="10.0.0.5")


def test_a_fleet_behind_a_gateway_on_another_network(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    """What it lacks is looked at after the ports."""
    options = ("--address", "10.0.0.5", "--http", "8003", "--first-port", "65530")
    assert "--first-port 65530" in run_hplm("fleet", "serve", "--home", tiny_home.path, *options)
