"""Messages of gRPC's ModelInfer with a fault: lengths of elements, shapes, fields, bits; the inner models directly."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tritonclient.grpc import service_pb2

from backends.wire import HIDDEN, MODEL, TEXT, TICKET, TICKET_COLUMNS, TICKET_VERSION, WORDS
from bench.kit.fuzz.bytes_tensor import element, elements
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.rule import Case
from bench.kit.fuzz.vocabulary import (
    DATATYPES,
    EXTREMES,
    INT64,
    NUMBERS,
    ODD_TEXTS,
    TENSORS,
    Vocabulary,
    model_name,
    parameter_name,
    shape,
)
from bench.kit.fuzz.wire_case import GrpcCase, RelayCase

_HIDDEN_SIZES = (64, 64, 64, 0, 1, 63, 65, 128, 768)
_HALVES = (b"\x00\x7e", b"\x00\x7c", b"\x00\xfc", b"\xff\x7b", b"\x01\x00", b"\x00\x00")
"""NaN, the infinities, the largest number, the smallest, zero."""
_METHODS = (
    "ModelInfer",
    "ModelStreamInfer",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "Nothing",
)


class Tensor(NamedTuple):
    """An input as a message carries it."""

    name: str
    datatype: str
    shape: Sequence[int]
    content: bytes


def infer_message(model: str, tensors: Sequence[Tensor], parameters: Mapping[str, Any] | None = None) -> Any:
    """A message as clients send it, whatever the tensors hold."""
    message = service_pb2.ModelInferRequest(model_name=model)
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.content)
    for name, value in (parameters or {}).items():
        setattr(message.parameters[name], f"{'string' if isinstance(value, str) else 'int64'}_param", value)
    return message


def good_tensors(rows: Sequence[tuple[str, str]]) -> list[Tensor]:
    columns = zip((MODEL, TEXT), zip(*rows, strict=True), strict=True)
    return [
        Tensor(name, "BYTES", [len(rows), 1], b"".join(element(value.encode()) for value in column))
        for name, column in columns
    ]


def lengths_case(draw: Draw, vocabulary: Vocabulary) -> GrpcCase:
    """Lengths of BYTES that are too long, too short, cut, or followed by more, for the ensemble or a model of it."""
    rows = draw.choice((1, 1, 1, 2, 3))
    values = [
        [vocabulary.hplm(draw).encode() for _ in range(rows)],
        [vocabulary.text(draw).encode() for _ in range(rows)],
    ]
    wrong = draw.randrange(3)
    contents = [elements(draw, column, is_right=at not in (wrong, wrong - 2)) for at, column in enumerate(values)]
    tensors = [Tensor(name, "BYTES", [rows, 1], content) for name, content in zip((MODEL, TEXT), contents, strict=True)]
    return GrpcCase(infer_message(draw.choice(("hplm", "hplm", "hplm_lower")), tensors).SerializeToString())


def fields_case(draw: Draw, vocabulary: Vocabulary) -> GrpcCase:
    """Inputs that are missing, doubled or of another shape or type; parameters of every type; odd outputs."""
    message = _good_message(draw, vocabulary)
    for _ in range(draw.choice((1, 1, 2, 3))):
        _change(draw, message)
    return GrpcCase(message.SerializeToString(), draw.choice(_METHODS) if draw.random() < 0.05 else "ModelInfer")


def protobuf_case(draw: Draw, vocabulary: Vocabulary) -> GrpcCase:
    """A serialised message with flipped bits, cuts and foreign pieces."""
    message = _good_message(draw, vocabulary)
    if draw.random() < 0.3:
        _change(draw, message)
    content = message.SerializeToString()
    if draw.random() < 0.05:
        return GrpcCase(draw.randbytes(draw.randint(0, 300)), draw.choice(_METHODS))
    changed = draw.damaged(content)
    return GrpcCase(changed, draw.choice(_METHODS) if draw.random() < 0.1 else "ModelInfer")


def lower_case(draw: Draw, vocabulary: Vocabulary) -> GrpcCase:
    """`hplm_lower` asked directly, with any bytes."""
    rows = draw.choice((1, 1, 2, 9))

    def content(value: str) -> bytes:
        return element(draw.randbytes(draw.randint(0, 40)) if draw.random() < 0.2 else vocabulary.encoded(draw, value))

    columns = [
        [content(vocabulary.hplm(draw)) for _ in range(rows)],
        [content(vocabulary.text(draw)) for _ in range(rows)],
    ]
    names = zip((MODEL, TEXT), columns, strict=True)
    tensors = [Tensor(name, "BYTES", [rows, 1], b"".join(column)) for name, column in names]
    parameters = {parameter_name(draw): draw.choice((*NUMBERS, *EXTREMES, *ODD_TEXTS))} if draw.random() < 0.5 else None
    return GrpcCase(infer_message("hplm_lower", tensors, parameters).SerializeToString())


def upper_case(draw: Draw, vocabulary: Vocabulary) -> GrpcCase:
    """`hplm_upper` asked directly, with a ticket that no server has signed."""
    rows = draw.choice((1, 1, 2, 5))
    tokens, size = draw.choice((0, 1, 5, 40)), draw.choice(_HIDDEN_SIZES)
    columns = draw.choice((len(TICKET_COLUMNS), len(TICKET_COLUMNS), 0, 1, 6, 15))
    numbers = [draw.choice((*NUMBERS, *EXTREMES, draw.getrandbits(62))) for _ in range(rows * columns)]
    if columns and draw.random() < 0.7:
        numbers[::columns] = [TICKET_VERSION] * rows
    tensors = [
        Tensor(HIDDEN, "FP16", [rows, tokens, size], draw.choice(_HALVES) * (rows * tokens * size)),
        Tensor(TICKET, "INT64", [rows, columns], struct.pack(f"<{len(numbers)}q", *numbers)),
        _words(draw, rows),
    ]
    if draw.random() < 0.2:
        del tensors[draw.randrange(len(tensors))]
    return GrpcCase(infer_message("hplm_upper", tensors).SerializeToString())


def relay_case(draw: Draw, vocabulary: Vocabulary) -> RelayCase:
    """A ticket that `hplm_lower` has just signed, with hidden rows and words that are not those of its text."""
    rows = [(draw.choice(vocabulary.hplms), draw.choice(vocabulary.texts)) for _ in range(draw.choice((1, 1, 2)))]
    return RelayCase(
        infer_message("hplm_lower", good_tensors(rows)).SerializeToString(), partial(_relayed, draw.getrandbits(64))
    )


def _relayed(seed: int, answer: bytes) -> bytes:
    """Make a request for `hplm_upper` of an answer of `hplm_lower`."""
    draw, told = Draw(Case("relayed", seed, 0)), service_pb2.ModelInferResponse.FromString(answer)
    tensors = [
        Tensor(output.name, output.datatype, list(output.shape), content)
        for output, content in zip(told.outputs, told.raw_output_contents, strict=True)
    ]
    return bytes(infer_message("hplm_upper", [_changed_tensor(draw, tensor) for tensor in tensors]).SerializeToString())


def _changed_tensor(draw: Draw, tensor: Tensor) -> Tensor:
    rows = tensor.shape[0]
    if tensor.name == WORDS:
        return _words(draw, rows) if draw.random() < 0.7 else tensor
    if tensor.name == TICKET:
        return tensor if draw.random() < 0.8 else tensor._replace(content=draw.damaged(tensor.content))
    match draw.randrange(4):
        case 0:
            return tensor._replace(content=draw.choice(_HALVES) * (len(tensor.content) // 2))
        case 1:
            return tensor._replace(content=draw.randbytes(len(tensor.content)))
        case 2:
            tokens, size = draw.choice((0, 1, tensor.shape[1], 2 * tensor.shape[1])), draw.choice(_HIDDEN_SIZES)
            return Tensor(HIDDEN, "FP16", [rows, tokens, size], bytes(2 * rows * tokens * size))
        case _:
            return tensor


def _words(draw: Draw, rows: int) -> Tensor:
    """Words of any content, as elements or as plain bytes."""
    tables = (
        struct.pack("<i3i", 1, 0, 0, 3) + b"cat",
        struct.pack("<i", draw.choice((-1, 5, 1 << 30))),
        draw.randbytes(9),
    )
    values = [draw.choice((b"", *tables)) for _ in range(rows)]
    if draw.random() < 0.2:
        return Tensor(WORDS, "BYTES", [rows, 1], elements(draw, values, is_right=draw.random() < 0.5))
    longest = max(map(len, values)) + draw.choice((0, 0, 1))
    lengths = [draw.choice((len(value), len(value), -1, longest + 1, 1 << 30)) for value in values]
    pairs = zip(lengths, values, strict=True)
    content = b"".join(struct.pack("<i", length) + value.ljust(longest, b"\0") for length, value in pairs)
    return Tensor(WORDS, "UINT8", [rows, 4 + longest], content if draw.random() < 0.9 else draw.damaged(content))


def _good_message(draw: Draw, vocabulary: Vocabulary) -> Any:
    rows = [(vocabulary.hplm(draw), vocabulary.text(draw)) for _ in range(draw.choice((1, 1, 2, 4)))]
    parameters = {"deadline_ms": 60_000, "level": "full"} if draw.random() < 0.2 else None
    return infer_message("hplm", good_tensors(rows), parameters)


def _change(draw: Draw, message: Any) -> None:
    if not message.inputs:
        return
    tensor = draw.choice(message.inputs)
    match draw.randrange(12):
        case 0:
            tensor.name = draw.choice(TENSORS)
        case 1:
            tensor.datatype = draw.choice(DATATYPES)
        case 2 | 3:
            tensor.shape[:] = shape(draw, 1)
        case 4:
            del message.inputs[draw.randrange(len(message.inputs))]
        case 5:
            message.inputs.add().CopyFrom(tensor)
            if draw.random() < 0.5 and message.raw_input_contents:
                message.raw_input_contents.append(draw.choice(message.raw_input_contents))
        case 6 if message.raw_input_contents:
            del message.raw_input_contents[draw.randrange(len(message.raw_input_contents))]
        case 7:
            message.raw_input_contents.append(draw.randbytes(draw.randint(0, 9)))
        case 8:
            _type_contents(draw, message, tensor)
        case 9:
            output = message.outputs.add(name=draw.choice(("RESULT", "RESULT", "HIDDEN", "", "x" * 200)))
            _set_parameter(draw, output.parameters[parameter_name(draw)])
        case 10:
            message.model_name, message.model_version = model_name(draw), draw.choice(("", "1", "-1", "x", "9" * 30))
        case _:
            place = draw.choice((message.parameters, message.parameters, tensor.parameters))
            _set_parameter(draw, place[parameter_name(draw)])


def _type_contents(draw: Draw, message: Any, tensor: Any) -> None:
    """Give contents in typed fields, beside the raw ones or instead of them."""
    if draw.random() < 0.7:
        del message.raw_input_contents[:]
    contents = tensor.contents
    for _ in range(draw.choice((1, 1, 2, 70))):
        match draw.randrange(5):
            case 0:
                contents.bool_contents.append(True)
            case 1:
                contents.int64_contents.append(draw.choice(EXTREMES))
            case 2:
                contents.fp32_contents.append(float("nan"))
            case _:
                contents.bytes_contents.append(draw.choice((b"", b"cat", b"acme/topic", b"\xff")))


def _set_parameter(draw: Draw, parameter: Any) -> None:
    match draw.randrange(6):
        case 0:
            parameter.bool_param = True
        case 1:
            parameter.int64_param = draw.choice((*NUMBERS, *EXTREMES))
        case 2:
            parameter.string_param = draw.choice((*ODD_TEXTS, "auto", "full", "students"))
        case 3:
            parameter.double_param = draw.choice((0.5, 1e308, float("nan"), float("inf"), -1.0))
        case 4:
            parameter.uint64_param = draw.choice((0, 5, INT64, 2 * INT64 - 1))
        case _:
            parameter.ClearField("int64_param")
