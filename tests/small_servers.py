"""Small real servers that speak Triton's protocols, answer as ensemble `hplm` does, and note what they were sent."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import serialize_byte_tensor

from hplm_client.address import Protocol

NOT_READY = "Request for unknown model: 'hplm' is not found"
NO_ROOM = 'the queue is full {"reason": "queue_full", "retry_after_ms": 10}'


@dataclass
class SmallServer:
    """One server; `fault` says what it does instead of answering, `headers` are those of the requests it took.

    With the fault "slow" it answers once `go_on` is set; over gRPC it notes whether the caller still listens.
    """

    protocol: Protocol
    port: int
    fault: str | None = None
    headers: list[dict[str, str]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    listens: list[bool] = field(default_factory=list)
    stop: Any = None

    @property
    def url(self) -> str:
        return f"{self.protocol}://127.0.0.1:{self.port}"

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def asked(self) -> int:
        return len(self.headers)

    @property
    def hplms(self) -> list[str]:
        return [each["x-hplm"] for each in self.headers]

    def row(self, hplm: str) -> bytes:
        """An answer whose value is the server's port."""
        return json.dumps({"hplm": hplm, "version": 1, "task": "regression", "value": self.port}).encode()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def small_server(
    protocol: Protocol,
    fault: str | None = None,
    port: int | None = None,
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[SmallServer]:
    server = SmallServer(protocol, port or free_port(), fault)
    server.stop = _serve_grpc(server, credentials) if protocol == "grpc" else _serve_http(server)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def black_hole() -> Iterator[str]:
    """The address of a host that swallows every attempt to connect."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        place = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(place)
        time.sleep(0.05)
        yield f"127.0.0.1:{place[1]}"
        for one in waiting:
            one.close()


def _serve_grpc(server: SmallServer, credentials: grpc.ServerCredentials | None) -> Any:
    def infer(request: Any, context: grpc.ServicerContext) -> Any:
        server.headers.append({key: str(value) for key, value in context.invocation_metadata()})
        if server.fault == "not ready":
            context.abort(grpc.StatusCode.UNAVAILABLE, NOT_READY)
        if server.fault == "no room":
            context.abort(grpc.StatusCode.UNAVAILABLE, NO_ROOM)
        if server.fault == "slow":
            server.go_on.wait(30)
            server.listens.append(context.is_active())
        rows = [server.row(server.hplms[-1])] * int(request.inputs[0].shape[0])
        output = messages.ModelInferResponse.InferOutputTensor(name="RESULT", datatype="BYTES", shape=[len(rows), 1])
        content = serialize_byte_tensor(np.array(rows, dtype=np.object_)).item()
        return messages.ModelInferResponse(outputs=[output], raw_output_contents=[content])

    def model_ready(_request: Any, _context: grpc.ServicerContext) -> Any:
        return messages.ModelReadyResponse(ready=server.fault is None)

    methods = {
        "ModelInfer": (infer, messages.ModelInferRequest, messages.ModelInferResponse),
        "ModelReady": (model_ready, messages.ModelReadyRequest, messages.ModelReadyResponse),
    }
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString
        )
        for name, (call, asked, answered) in methods.items()
    }
    running = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    running.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),)
    )
    if credentials is None:
        assert running.add_insecure_port(server.place) == server.port
    else:
        assert running.add_secure_port(server.place, credentials) == server.port
    running.start()
    return lambda: running.stop(None).wait(5)


def _serve_http(server: SmallServer) -> Any:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.headers.append({key.lower(): value for key, value in self.headers.items()})
            if server.fault in ("not ready", "no room"):
                self._answer(503, {"error": NOT_READY if server.fault == "not ready" else NO_ROOM})
                return
            if server.fault == "slow":
                server.go_on.wait(30)
            head = json.loads(body[: int(self.headers["Inference-Header-Content-Length"])])
            rows = [server.row(server.hplms[-1]).decode()] * head["inputs"][0]["shape"][0]
            output = {"name": "RESULT", "datatype": "BYTES", "shape": [len(rows), 1], "data": rows}
            self._answer(200, {"model_name": "hplm", "model_version": "1", "outputs": [output]})

        def do_GET(self) -> None:
            self._answer(200 if server.fault is None else 400, {})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def __init__(self) -> None:
            self.open: list[socket.socket] = []
            super().__init__(("127.0.0.1", server.port), Handler)

        def process_request(self, request: Any, client_address: Any) -> None:
            self.open.append(request)
            super().process_request(request, client_address)

        def stop(self) -> None:
            """End as a process does: also the connections that are kept for the next request."""
            self.shutdown()
            self.server_close()
            for connection in self.open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    running = Server()
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return running.stop
