"""HTTP requests of KServe v2 with a fault: JSON, tensors in binary, Triton's `generate`.

Not among the cases: a tensor of numbers in JSON whose shape is very large. Triton 24.10 takes memory for the shape
before it looks at the data or at the model, and ends with `std::length_error` where that cannot be;
docs/explanation/security.md says what to do.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from bench.kit.fuzz.bytes_tensor import elements
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_tree import Members, deep, mutate, odd_value, written
from bench.kit.fuzz.vocabulary import Vocabulary, model_name, parameter_name, shape
from bench.kit.fuzz.wire_case import HttpCase

_LENGTHS = (
    "",
    "-1",
    "0",
    "1",
    "abc",
    "99999999999999999999",
    "4294967296",
    "2147483648",
    "1e3",
    "0x10",
    " 12",
    "12 12",
)


_NUMBERS_OF_TRITON = re.compile(rb'"(BOOL|U?INT(8|16|32|64)|FP(32|64))"')
_LARGE = re.compile(rb"\d{7}")


def json_case(draw: Draw, vocabulary: Vocabulary) -> HttpCase:
    """A body of JSON, changed as a tree, as bytes, or both."""
    tree = _infer_tree(draw, vocabulary)
    mutate(draw, tree, draw.choice((0, 1, 1, 1, 2, 3, 5)))
    body = written(tree).encode()
    if draw.random() < 0.15:
        body = draw.choice((draw.damaged(body), body.decode().encode("utf-16"), b"\xef\xbb\xbf" + body, body + b"\0{}"))
    return HttpCase(_path(draw), *_packed(draw, _without_large_numbers(body)))


def parameters_case(draw: Draw, vocabulary: Vocabulary) -> HttpCase:
    """Good tensors with parameters of every type and extreme deadlines."""
    tree = _infer_tree(draw, vocabulary)
    names = draw.choices((parameter_name(draw), "deadline_ms", "level"), k=draw.randint(1, 3))
    tree.insert(0, ("parameters", Members((name, odd_value(draw)) for name in names)))
    return HttpCase("/v2/models/hplm/infer", _without_large_numbers(written(tree).encode()))


def deep_case(draw: Draw, vocabulary: Vocabulary) -> HttpCase:
    """JSON of depth 100,000, as the body or within it."""
    body = deep(draw)
    if draw.random() < 0.6:
        place = draw.choice(("parameters", "inputs", "id", "x"))
        body = f'{{"{place}":{body},"inputs":[]}}'
    path = draw.choice(("/v2/models/hplm/infer", "/v2/models/hplm/generate", "/v2/models/hplm_lower/infer"))
    return HttpCase(path, body.encode())


def generate_case(draw: Draw, vocabulary: Vocabulary) -> HttpCase:
    """Triton's `generate` endpoint, whose bodies are flat."""
    tree = Members([("MODEL", vocabulary.hplm(draw)), ("TEXT", vocabulary.text(draw))])
    if draw.random() < 0.5:
        tree.append((parameter_name(draw), odd_value(draw)))
    mutate(draw, tree, draw.choice((0, 1, 1, 2)))
    body = written(tree).encode()
    if draw.random() < 0.1:
        body = draw.damaged(body)
    return HttpCase(_path(draw, draw.choice(("generate", "generate", "generate_stream"))), body)


def binary_case(draw: Draw, vocabulary: Vocabulary) -> HttpCase:
    """Tensors after the JSON, with a wrong length of the JSON, of a tensor or of an element."""
    rows = draw.choice((1, 1, 2, 3))
    columns = {
        "MODEL": [vocabulary.encoded(draw, vocabulary.hplm(draw)) for _ in range(rows)],
        "TEXT": [vocabulary.encoded(draw, vocabulary.text(draw)) for _ in range(rows)],
    }
    tensors = {name: elements(draw, values, is_right=draw.random() < 0.4) for name, values in columns.items()}
    inputs = [_binary_input(draw, name, rows, tensor) for name, tensor in tensors.items()]
    tree = Members([("inputs", inputs), ("outputs", [_output(draw)])])
    if draw.random() < 0.15:
        mutate(draw, tree, 1)
    header, body = _without_large_numbers(written(tree).encode()), b"".join(tensors.values())
    if draw.random() < 0.1:
        body = draw.damaged(body)
    length = str(len(header))
    match draw.randrange(10):
        case 0:
            length = draw.choice(_LENGTHS)
        case 1:
            length = str(len(header) + draw.choice((-9, -1, 1, 2, len(body), len(body) + 1)))
        case _:
            pass
    return HttpCase(_path(draw), header + body, {"Inference-Header-Content-Length": length})


def _binary_input(draw: Draw, name: str, rows: int, tensor: bytes) -> Members:
    size: Any = len(tensor)
    if draw.random() < 0.2:
        size = draw.choice((0, -1, size - 1, size + 1, size + 4, 1 << 31, 1 << 32, 1 << 62, str(size), 1.5, None))
    shaped = [rows, 1] if draw.random() < 0.9 else shape(draw, rows)
    parameters = Members([("binary_data_size", size)])
    return Members([("name", name), ("shape", shaped), ("datatype", "BYTES"), ("parameters", parameters)])


def _without_large_numbers(body: bytes) -> bytes:
    """Make tensors of numbers tensors of strings, where a shape may be large; see the top of this file."""
    return _NUMBERS_OF_TRITON.sub(b'"BYTES"', body) if _LARGE.search(body) else body


def _infer_tree(draw: Draw, vocabulary: Vocabulary) -> Members:
    rows = draw.choice((1, 1, 1, 2, 4))
    columns = {
        "MODEL": [vocabulary.hplm(draw) for _ in range(rows)],
        "TEXT": [vocabulary.text(draw) for _ in range(rows)],
    }
    inputs = [
        Members([("name", name), ("shape", [rows, 1]), ("datatype", "BYTES"), ("data", data)])
        for name, data in columns.items()
    ]
    tree = Members([("inputs", inputs)])
    if draw.random() < 0.4:
        tree.append(("outputs", [_output(draw)]))
    if draw.random() < 0.2:
        tree.append(("id", "case"))
    return tree


def _output(draw: Draw) -> Members:
    output = Members([("name", draw.choice(("RESULT", "RESULT", "RESULT", "HIDDEN", "")))])
    if draw.random() < 0.5:
        name = draw.choice(("binary_data", "binary_data_size", "shared_memory_region"))
        output.append(("parameters", Members([(name, draw.choice((True, False, 3, "x", -1)))])))
    return output


def _path(draw: Draw, verb: str = "infer") -> str:
    if draw.random() < 0.9:
        return f"/v2/models/hplm/{verb}"
    version = draw.choice(("", "/versions/1", "/versions/-1", "/versions/99999999999999999999", "/versions/x"))
    return f"/v2/models/{quote(model_name(draw), safe='.')}{version}/{verb}"


def _packed(draw: Draw, body: bytes) -> tuple[bytes, Mapping[str, str]]:
    """The body as it is, mostly; else packed, or said to be so."""
    match draw.randrange(40):
        case 0:
            return gzip.compress(body, mtime=0), {"Content-Encoding": "gzip"}
        case 1:
            return zlib.compress(body), {"Content-Encoding": "deflate"}
        case 2:
            return draw.damaged(gzip.compress(body, mtime=0)), {"Content-Encoding": "gzip"}
        case 3:
            return body, {"Content-Encoding": draw.choice(("gzip", "deflate", "br", "gzip, gzip"))}
        case 4:
            return body, {
                "Accept-Encoding": draw.choice(("gzip", "deflate", "*;q=0", "gzip;q=x")),
                "Content-Type": "a/b",
            }
        case 5:
            return struct.pack("<I", len(body)) + body, {"Inference-Header-Content-Length": draw.choice(_LENGTHS)}
        case _:
            return body, {}
