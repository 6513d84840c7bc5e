"""Bytes for the ports that are no HTTP, or nearly: garbage, frames of HTTP/2, slow and half-closed connections."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bench.kit.fuzz.bytes_tensor import element
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.grpc_messages import good_tensors, infer_message
from bench.kit.fuzz.vocabulary import ODD_BYTES, Vocabulary
from bench.kit.fuzz.wire_case import SocketCase

GIGABYTES_2 = 2 << 30
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_STREAM, _END_HEADERS = 1, 4
_HTTP_HEADERS = (
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 5\r\nContent-Length: 900",
    b"Content-Length: abc",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3",
    b"Expect: 100-continue\r\nContent-Length: 5",
    b"Connection: close, upgrade\r\nUpgrade: h2c",
    b"Inference-Header-Content-Length: 99999999999",
    b"X: " + b"y" * 70_000,
    b"\r\n".join(b"A%d: b" % number for number in range(2000)),
    b": empty",
    b"No colon",
    b"A: \xff\x00\x01",
)
_REQUEST_LINES = (
    b"GET /v2/health/ready HTTP/1.1",
    b"POST /v2/models/hplm/infer HTTP/1.1",
    b"POST /v2/models/hplm/generate HTTP/1.0",
    b"POST /v2/models/hplm/infer HTTP/9.9",
    b"GET " + b"/" * 9000 + b" HTTP/1.1",
    b"GET /v2/%2e%2e/%00/%zz?a=%&&= HTTP/1.1",
    b"GET http://user@[::1]:99999/ HTTP/1.1",
    b"DELETE /v2/models/hplm HTTP/1.1",
    b"\xff\xfe /v2 HTTP/1.1",
    b"POST",
    b"",
)
_CHUNKS = (
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\nx",
    b"-5\r\nhello\r\n",
    b"zz\r\n",
    b"5;a=b\r\nhel",
    b"1\r\n{\r\n" * 40 + b"0\r\n\r\n",
    b"0\r\nTrailer: x\r\n\r\n",
)


def http_garbage_case(draw: Draw, vocabulary: Vocabulary) -> SocketCase:
    """Request lines, headers and chunks that no client sends."""
    if draw.random() < 0.1:
        return SocketCase("http", [draw.randbytes(draw.randint(1, 3000))])
    headers = [b"Host: x", *draw.choices(_HTTP_HEADERS, k=draw.randint(0, 3))]
    body = draw.choice((*_CHUNKS, *ODD_BYTES, _body(vocabulary, draw), b""))
    request = b"\r\n".join([draw.choice(_REQUEST_LINES), *headers, b"", b""]) + body
    if draw.random() < 0.3:
        request = draw.damaged(request)
    return SocketCase("http", _in_parts(draw, request, draw.choice((1, 1, 2, 5))), half_closes=draw.random() < 0.3)


def http2_case(draw: Draw, vocabulary: Vocabulary) -> SocketCase:
    """Frames of HTTP/2 for the gRPC port."""
    preface = _PREFACE + _frame(_SETTINGS, 0, 0, b"")
    match draw.randrange(6):
        case 0:
            frames = b"".join(_odd_frame(draw) for _ in range(draw.randint(1, 12)))
        case 1:
            frames = _call(draw, vocabulary)
        case 2:
            frames = draw.damaged(_call(draw, vocabulary))
        case 3:
            frames = _storm(draw)
        case 4:
            frames = _frame(_HEADERS, _END_HEADERS, 1, draw.randbytes(draw.randint(0, 400)))
        case _:
            frames, preface = draw.randbytes(200), draw.damaged(preface)
    content = preface + frames
    return SocketCase("grpc", _in_parts(draw, content, draw.choice((1, 1, 3))), half_closes=draw.random() < 0.3)


def slow_case(draw: Draw, vocabulary: Vocabulary) -> SocketCase:
    """A request that comes in pieces, with pauses, and may never be whole."""
    request = _post(_body(vocabulary, draw))
    whole = request if draw.random() < 0.5 else request[: draw.randrange(len(request))]
    if draw.random() < 0.3:
        whole = _PREFACE + _frame(_SETTINGS, 0, 0, b"") + _call(draw, vocabulary)
        return SocketCase("grpc", _in_parts(draw, whole, 4), pause_s=0.01, half_closes=True)
    return SocketCase("http", _in_parts(draw, whole, 6), pause_s=0.01, half_closes=draw.random() < 0.5)


def announced_case(draw: Draw, vocabulary: Vocabulary) -> SocketCase:
    """A body that is announced as 2 GB, of which little comes."""
    body = _body(vocabulary, draw)
    if draw.random() < 0.5:
        frames = _frame(_HEADERS, _END_HEADERS, 1, _header_block(_METHOD))
        message = struct.pack(">BI", 0, GIGABYTES_2 - 1) + body
        return SocketCase("grpc", [_PREFACE, _frame(_SETTINGS, 0, 0, b""), frames, _frame(_DATA, 0, 1, message)])
    return SocketCase("http", [_post(body, str(GIGABYTES_2 + draw.choice((-1, 0, 1))).encode())], half_closes=True)


def chunks_case(draw: Draw, vocabulary: Vocabulary) -> SocketCase:
    """Thousands of chunks of one byte each, rarely a million.

    Triton 24.10 lays them out on a thread's stack (CVE-2025-23310), where `TritonServer` leaves room for so many.
    """
    body = _body(vocabulary, draw).ljust(1_000_000 if draw.happens(0.04) else draw.choice((1000, 5000)))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /v2/models/hplm/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return SocketCase("http", [head, chunks], waits_s=1.0)


def _post(body: bytes, length: bytes | None = None) -> bytes:
    head = b"POST /v2/models/hplm/infer HTTP/1.1\r\nHost: x\r\nContent-Length: "
    return head + (length or b"%d" % len(body)) + b"\r\n\r\n" + body


def _body(vocabulary: Vocabulary, draw: Draw) -> bytes:
    named = (("MODEL", draw.choice(vocabulary.hplms)), ("TEXT", draw.choice(vocabulary.texts)))
    inputs = [f'{{"name":"{name}","shape":[1,1],"datatype":"BYTES","data":["{value}"]}}' for name, value in named]
    return f'{{"inputs":[{",".join(inputs)}]}}'.encode()


def _in_parts(draw: Draw, content: bytes, parts: int) -> Sequence[bytes]:
    cuts = sorted(draw.randint(0, len(content)) for _ in range(parts - 1))
    return [content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]


def _frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _odd_frame(draw: Draw) -> bytes:
    payload = draw.randbytes(draw.choice((0, 1, 4, 5, 8, 30, 300)))
    length = draw.choice((None, None, None, 0, 4, 16_384, 16_385, (1 << 24) - 1))
    stream = draw.choice((0, 1, 1, 2, 3, (1 << 31) - 1, 1 << 31))
    return _frame(draw.randrange(14), draw.choice((0, 1, 4, 5, 8, 32, 255)), stream, payload, length)


def _call(draw: Draw, vocabulary: Vocabulary) -> bytes:
    """A call whose headers, length of the message or end of the stream may be wrong."""
    rows = [(draw.choice(vocabulary.hplms), draw.choice(vocabulary.texts))]
    message = infer_message("hplm", good_tensors(rows)).SerializeToString()
    length = draw.choice((len(message), len(message), 0, len(message) - 1, len(message) + 1, 0xFFFFFFFF))
    method = draw.choice((_METHOD, _METHOD, "/", "", "/inference.GRPCInferenceService/", "/x" * 900))
    data = struct.pack(">BI", draw.choice((0, 0, 1, 255)), length) + message
    ends = draw.choice((_END_STREAM, _END_STREAM, 0))
    return _frame(_HEADERS, _END_HEADERS, 1, _header_block(method)) + _frame(_DATA, ends, 1, data)


def _header_block(method: str) -> bytes:
    """Literals of HPACK that no table keeps."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers.items())


def _literal(value: str) -> bytes:
    content, prefix = value.encode(), 127
    if len(content) < prefix:
        return bytes([len(content)]) + content
    rest, length = len(content) - prefix, bytearray([prefix])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + content


def _storm(draw: Draw) -> bytes:
    """Many small frames of one kind."""
    count, kind = 300, draw.randrange(5)
    if kind == 0:
        return _frame(_PING, 0, 0, bytes(8)) * count
    if kind == 1:
        return _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 0x7FFFFFFF)) * count
    if kind == 2:
        return _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", 0x7FFFFFFF)) * count
    if kind == 3:
        opened = _frame(_HEADERS, 0, 1, element(b"x"))
        return opened + _frame(_CONTINUATION, 0, 1, b"\0\1a\1b") * count
    streams = range(1, 2 * count, 2)
    block = _header_block(_METHOD)
    return b"".join(
        _frame(_HEADERS, _END_HEADERS, stream, block) + _frame(_RST_STREAM, 0, stream, bytes(4)) for stream in streams
    )
