"""A machine of the fleet that vanishes from the network: a network namespace that loses its address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from builder.fleet.gateway import Gateway
from builder.fleet.gateway_config import GatewaySettings
from builder.fleet.gateway_program import find_gateway
from builder.fleet.upstream import Upstream
from builder.serving.ports import ClaimedPorts
from stand_in_servers import INFER_METHOD, StandIn
from waiting import LIMIT_S, wait_until

FAR = "far"
HERE, THERE = "10.213.77.1", "10.213.77.2"
SERVER = f"""
import threading, time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
import grpc

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass

def infer(request, context):
    if request == b"hold":
        time.sleep(600)
    return b"there"

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(infer)

server = grpc.server(ThreadPoolExecutor(16))
server.add_generic_rpc_handlers([Handler()])
server.add_insecure_port("{THERE}:7001")
server.start()
print("ready", flush=True)
HTTPServer(("{THERE}", 7003), Health).serve_forever()
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


@pytest.fixture
def machine() -> Iterator[str]:
    """Yield the namespace of a server on an address of its own."""
    name, near = f"hplm-vanish-{os.getpid()}", f"hplm{os.getpid()}"
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        if b"not permitted" not in error.stderr and b"denied" not in error.stderr:
            raise
        pytest.skip("needs the right to make a network namespace")
    server = None
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", FAR, "netns", name)
        ip("addr", "add", f"{HERE}/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", name, "addr", "add", f"{THERE}/30", "dev", FAR)
        ip("-n", name, "link", "set", FAR, "up")
        command = ["ip", "netns", "exec", name, sys.executable, "-c", SERVER]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        yield name
    finally:
        if server is not None:
            server.kill()
            server.wait()
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)  # else it stays for a while
        ip("netns", "del", name)


@pytest.mark.serial
@pytest.mark.long
def test_requests_to_a_machine_that_vanishes_are_asked_again(machine: str, tmp_path: Path) -> None:
    other = StandIn("server-2")
    ports = ClaimedPorts.take([("127.0.0.1", None)] * 2)
    settings = GatewaySettings(http=ports.numbers[0], grpc=ports.numbers[1])
    upstreams = [Upstream(name="server-1", address=THERE, http=7000, grpc=7001, health=7003), other.upstream]
    gateway = Gateway(find_gateway(), settings, upstreams, tmp_path / "gateway.log")
    gateway.start()
    try:
        gateway.wait_ready()
        with (
            grpc.insecure_channel(f"127.0.0.1:{settings.grpc}") as channel,
            ThreadPoolExecutor(8) as callers,
        ):
            infer = channel.unary_unary(INFER_METHOD)

            def ask(tenant: str, body: bytes = b"x", after_s: float = 0.0) -> tuple[bytes, float]:
                time.sleep(after_s)
                began_s = time.monotonic()
                answer = infer(body, metadata=[("x-hplm", f"{tenant}/x")], timeout=LIMIT_S)
                return answer, time.monotonic() - began_s

            tenants = [f"tenant-{number}" for number in range(20)]
            wait_until(lambda: {ask(tenant)[0] for tenant in tenants} == {b"there", b"server-2"})
            tenant = next(tenant for tenant in tenants if ask(tenant)[0] == b"there")
            held = callers.submit(ask, tenant, b"hold")
            time.sleep(0.5)
            ip("-n", machine, "addr", "flush", "dev", FAR)
            # What comes before the health checks notice is sent, and never acknowledged.
            later = [callers.submit(ask, tenant, b"x", after_s) for after_s in (0.0, 0.1, 0.3, 3.0)]
            outcomes = [each.result() for each in (held, *later)]
        assert {answer for answer, _ in outcomes} == {b"server-2"}
        assert max(took_s for _, took_s in outcomes) < LIMIT_S / 2, "about five seconds"
    finally:
        gateway.stop()
        ports.release()
        other.close()
