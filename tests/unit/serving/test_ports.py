"""Ports: given ones are checked, free ones are nobody else's."""

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from backends.errors import InvalidArgumentError
from builder.serving.config import ServerConfig
from builder.serving.errors import PortInUseError
from builder.serving.port_holder import in_use_by
from builder.serving.ports import PortClaims, require_free


def numbers(claims: PortClaims) -> list[int]:
    return [claims.ports.http, claims.ports.grpc, claims.ports.metrics]


def take_and_hold(folder, barrier, answers):
    claims = [PortClaims.take(ServerConfig(repository=folder)) for _ in range(20)]
    answers.put([port for each in claims for port in numbers(each)])
    barrier.wait()


@pytest.fixture
def config(tmp_path) -> ServerConfig:
    return ServerConfig(repository=tmp_path)


def test_free_ports_of_many_servers_are_all_different(config):
    with ThreadPoolExecutor(8) as threads:
        claims = list(threads.map(lambda _: PortClaims.take(config), range(60)))
    taken = [port for each in claims for port in numbers(each)]
    assert len(set(taken)) == 180
    for each in claims:
        each.release()


def test_free_ports_of_several_processes_are_all_different(tmp_path):
    context = get_context("spawn")
    barrier, answers = context.Barrier(3), context.Queue()
    processes = [context.Process(target=take_and_hold, args=(tmp_path, barrier, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    taken = [port for _ in processes for port in answers.get(timeout=30)]
    for process in processes:
        process.join(30)
    assert len(set(taken)) == 3 * 20 * 3


def test_a_listening_port_is_named_in_the_error(config):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        told = f"port {port} on 127.0.0.1 is in use by process {os.getpid()} ("
        with pytest.raises(PortInUseError, match=re.escape(told)):
            PortClaims.take(ServerConfig(repository=config.repository, grpc_port=port))


def test_several_ports_in_use_are_named_at_once(config):
    claimed = PortClaims.take(config)
    with socket.create_server(("127.0.0.1", 0)) as other:
        health = other.getsockname()[1]
        ports = {"--http": ("127.0.0.1", claimed.ports.http), "--grpc": ("127.0.0.1", None)}
        with pytest.raises(PortInUseError) as refused:
            require_free({**ports, "--health-port": ("127.0.0.1", health)})
        with pytest.raises(PortInUseError, match=f"port {health} on .* is in use .*; give another --health-port, or"):
            require_free({"--health-port": ("127.0.0.1", health)})
    holder = f"by process {os.getpid()} ("
    told = str(refused.value)
    assert f"--http {claimed.ports.http} {holder}" in told and f"--health-port {health} {holder}" in told
    assert "--grpc" not in told
    claimed.release()
    require_free({**ports, "--health-port": ("127.0.0.1", health)})


def test_a_port_claimed_by_another_server_is_in_use_until_released(config):
    first = PortClaims.take(config)
    same = ServerConfig(repository=config.repository, http_port=first.ports.http)
    with pytest.raises(PortInUseError, match=f"port {first.ports.http} on .* is in use by process {os.getpid()} "):
        PortClaims.take(same)
    first.release()
    second = PortClaims.take(same)
    assert second.ports.http == first.ports.http
    second.release()


def test_a_refused_port_releases_the_others(config):
    free = PortClaims.take(config)
    free.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        busy = other.getsockname()[1]
        both = ServerConfig(repository=config.repository, http_port=free.ports.http, grpc_port=busy)
        with pytest.raises(PortInUseError):
            PortClaims.take(both)
    again = PortClaims.take(ServerConfig(repository=config.repository, http_port=free.ports.http))
    again.release()


def test_a_port_just_closed_with_lingering_connections_can_be_taken(config):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()  # the side that closes first keeps the port in TIME_WAIT
    claims = PortClaims.take(ServerConfig(repository=config.repository, http_port=port))
    claims.release()


def test_an_address_of_another_machine_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"192\.0\.2\.1"):
        PortClaims.take(ServerConfig(repository=tmp_path, address="192.0.2.1"))


def test_each_port_is_checked_on_the_address_where_it_will_listen(config):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        elsewhere = replace(config, address="127.0.0.2", http_port=port)
        PortClaims.take(elsewhere).release()
        with pytest.raises(PortInUseError, match=str(port)):
            PortClaims.take(replace(elsewhere, http_port=None, metrics_port=port, metrics_address="127.0.0.1"))


def test_what_no_process_of_this_user_has_is_not_named(config):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # it does not listen
        assert in_use_by(other.getsockname()[1]) == ""
