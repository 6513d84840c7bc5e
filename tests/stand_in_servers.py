"""Servers for the real gateway that do, over both protocols, what a test wants of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc

from builder.fleet.upstream import Upstream
from tcp_relay import TcpRelay
from waiting import LIMIT_S

INFER_PATH = "/v2/models/hplm/infer"
INFER_METHOD = "/inference.GRPCInferenceService/ModelInfer"


class StandIn:
    """Answers with its name; `behaviour` is `answer`, `reject`, `break` or `hold`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behaviour = "answer"
        self.is_ready = True
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()
        self._http, self._health = self._listen(self._infer), self._listen(self._readyz)
        self._pool = ThreadPoolExecutor(32)
        self._grpc = grpc.server(self._pool)
        self._grpc.add_generic_rpc_handlers([_Handler(self._infer_grpc)])
        self._relay = TcpRelay(self._grpc.add_insecure_port("127.0.0.1:0"))
        self._grpc.start()
        self.upstream = Upstream(
            name=name,
            address="127.0.0.1",
            http=self._http.server_address[1],
            grpc=self._relay.port,
            health=self._health.server_address[1],
        )

    def close(self) -> None:
        self.released.set()
        for server in (self._http, self._health):
            server.shutdown()
            server.server_close()
        self._relay.close()
        self._grpc.stop(None)
        self._pool.shutdown()

    def _listen(self, handle: Callable[[BaseHTTPRequestHandler], None]) -> ThreadingHTTPServer:
        def do_any(
            request: BaseHTTPRequestHandler,
        ) -> None:  # a method of the handler's class, which a bound one is not
            handle(request)

        methods = {"do_GET": do_any, "do_POST": do_any, "log_message": lambda *_: None, "protocol_version": "HTTP/1.1"}
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (BaseHTTPRequestHandler,), methods))
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def _readyz(self, request: BaseHTTPRequestHandler) -> None:
        _answer(request, 200 if self.is_ready else 503, b"{}")

    def _infer(self, request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.asked["http"] += 1
        if self.behaviour == "break":
            request.connection.close()
            request.close_connection = True
            return
        if self.behaviour == "hold":
            self.released.wait(2 * LIMIT_S)
        is_rejected = self.behaviour == "reject"
        _answer(request, 503 if is_rejected else 200, b'{"error": "queue_full"}' if is_rejected else self.name.encode())

    def _infer_grpc(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked["grpc"] += 1
        if self.behaviour == "break":
            self._relay.cut()
            context.abort(grpc.StatusCode.INTERNAL, "nobody reads this")
        if self.behaviour == "reject":
            context.abort(grpc.StatusCode.UNAVAILABLE, "queue_full")
        if self.behaviour == "hold":
            self.released.wait(2 * LIMIT_S)
        return self.name.encode()


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, infer: Callable[[bytes, grpc.ServicerContext], bytes]) -> None:
        self._infer = grpc.unary_unary_rpc_method_handler(infer)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._infer if details.method == INFER_METHOD else None


def _answer(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
