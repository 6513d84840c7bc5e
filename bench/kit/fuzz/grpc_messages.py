"""Messages of gRPC's ModelInfer with a fault: lengths of elements, shapes, fields, bits; the inner models directly."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tritonclient.grpc import service_pb2

from backends.wire import HIDDEN, MODEL, TEXT, TICKET, TICKET_COLUMNS, TICKET_VERSION, WORDS
from bench.kit.fuzz.bytes_tensor import element, elements
from bench.kit.fuzz.damage import damaged, flipped
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
_METHODS = ("ModelInfer", "ModelStreamInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "Nothing")


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


def lengths_case(rng: random.Random, vocabulary: Vocabulary) -> GrpcCase:
    """Lengths of BYTES that are too long, too short, cut, or followed by more, for the ensemble or a model of it."""
    rows = rng.choice((1, 1, 1, 2, 3))
    values = [[vocabulary.hplm(rng).encode() for _ in range(rows)], [vocabulary.text(rng).encode() for _ in range(rows)]]
    wrong = rng.randrange(3)
    contents = [elements(rng, column, is_right=at not in (wrong, wrong - 2)) for at, column in enumerate(values)]
    tensors = [
        Tensor(name, "BYTES", [rows, 1], content) for name, content in zip((MODEL, TEXT), contents, strict=True)
    ]
    return GrpcCase(infer_message(rng.choice(("hplm", "hplm", "hplm_lower")), tensors).SerializeToString())


def fields_case(rng: random.Random, vocabulary: Vocabulary) -> GrpcCase:
    """Inputs that are missing, doubled or of another shape or type; parameters of every type; odd outputs."""
    message = _good_message(rng, vocabulary)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, message)
    return GrpcCase(message.SerializeToString(), rng.choice(_METHODS) if rng.random() < 0.05 else "ModelInfer")


def protobuf_case(rng: random.Random, vocabulary: Vocabulary) -> GrpcCase:
    """A serialised message with flipped bits, cuts and foreign pieces."""
    message = _good_message(rng, vocabulary)
    if rng.random() < 0.3:
        _change(rng, message)
    content = message.SerializeToString()
    if rng.random() < 0.05:
        return GrpcCase(rng.randbytes(rng.randint(0, 300)), rng.choice(_METHODS))
    changed = flipped(rng, content) if rng.random() < 0.5 else damaged(rng, content, rng.choice((1, 1, 2)))
    return GrpcCase(changed, rng.choice(_METHODS) if rng.random() < 0.1 else "ModelInfer")


def lower_case(rng: random.Random, vocabulary: Vocabulary) -> GrpcCase:
    """`hplm_lower` asked directly, with any bytes."""
    rows = rng.choice((1, 1, 2, 9))

    def content(value: str) -> bytes:
        return element(rng.randbytes(rng.randint(0, 40)) if rng.random() < 0.2 else vocabulary.encoded(rng, value))

    columns = [[content(vocabulary.hplm(rng)) for _ in range(rows)], [content(vocabulary.text(rng)) for _ in range(rows)]]
    names = zip((MODEL, TEXT), columns, strict=True)
    tensors = [Tensor(name, "BYTES", [rows, 1], b"".join(column)) for name, column in names]
    parameters = {parameter_name(rng): rng.choice((*NUMBERS, *EXTREMES, *ODD_TEXTS))} if rng.random() < 0.5 else None
    return GrpcCase(infer_message("hplm_lower", tensors, parameters).SerializeToString())


def upper_case(rng: random.Random, vocabulary: Vocabulary) -> GrpcCase:
    """`hplm_upper` asked directly, with a ticket that no server has signed."""
    rows = rng.choice((1, 1, 2, 5))
    tokens, size = rng.choice((0, 1, 5, 40)), rng.choice(_HIDDEN_SIZES)
    columns = rng.choice((len(TICKET_COLUMNS), len(TICKET_COLUMNS), 0, 1, 6, 15))
    numbers = [rng.choice((*NUMBERS, *EXTREMES, rng.getrandbits(62))) for _ in range(rows * columns)]
    if columns and rng.random() < 0.7:
        numbers[::columns] = [TICKET_VERSION] * rows
    tensors = [
        Tensor(HIDDEN, "FP16", [rows, tokens, size], rng.choice(_HALVES) * (rows * tokens * size)),
        Tensor(TICKET, "INT64", [rows, columns], struct.pack(f"<{len(numbers)}q", *numbers)),
        _words(rng, rows),
    ]
    if rng.random() < 0.2:
        del tensors[rng.randrange(len(tensors))]
    return GrpcCase(infer_message("hplm_upper", tensors).SerializeToString())


def relay_case(rng: random.Random, vocabulary: Vocabulary) -> RelayCase:
    """A ticket that `hplm_lower` has just signed, with hidden rows and words that are not those of its text."""
    rows = [(rng.choice(vocabulary.hplms), rng.choice(vocabulary.texts)) for _ in range(rng.choice((1, 1, 2)))]
    return RelayCase(
        infer_message("hplm_lower", good_tensors(rows)).SerializeToString(), partial(_relayed, rng.getrandbits(64))
    )


def _relayed(seed: int, answer: bytes) -> bytes:
    """Make a request for `hplm_upper` of an answer of `hplm_lower`."""
    rng, told = random.Random(seed), service_pb2.ModelInferResponse.FromString(answer)
    tensors = [
        Tensor(output.name, output.datatype, list(output.shape), content)
        for output, content in zip(told.outputs, told.raw_output_contents, strict=True)
    ]
    return bytes(infer_message("hplm_upper", [_changed_tensor(rng, tensor) for tensor in tensors]).SerializeToString())


def _changed_tensor(rng: random.Random, tensor: Tensor) -> Tensor:
    rows = tensor.shape[0]
    if tensor.name == WORDS:
        return _words(rng, rows) if rng.random() < 0.7 else tensor
    if tensor.name == TICKET:
        return tensor if rng.random() < 0.8 else tensor._replace(content=flipped(rng, tensor.content, most=2))
    match rng.randrange(4):
        case 0:
            return tensor._replace(content=rng.choice(_HALVES) * (len(tensor.content) // 2))
        case 1:
            return tensor._replace(content=rng.randbytes(len(tensor.content)))
        case 2:
            tokens, size = rng.choice((0, 1, tensor.shape[1], 2 * tensor.shape[1])), rng.choice(_HIDDEN_SIZES)
            return Tensor(HIDDEN, "FP16", [rows, tokens, size], bytes(2 * rows * tokens * size))
        case _:
            return tensor


def _words(rng: random.Random, rows: int) -> Tensor:
    """Words of any content, as elements or as plain bytes."""
    tables = (struct.pack("<i3i", 1, 0, 0, 3) + b"cat", struct.pack("<i", rng.choice((-1, 5, 1 << 30))), rng.randbytes(9))
    values = [rng.choice((b"", *tables)) for _ in range(rows)]
    if rng.random() < 0.5:
        return Tensor(WORDS, "BYTES", [rows, 1], elements(rng, values, is_right=rng.random() < 0.5))
    longest = max(map(len, values))
    return Tensor(WORDS, "UINT8", [rows, longest], b"".join(value.ljust(longest, b"\0") for value in values))


def _good_message(rng: random.Random, vocabulary: Vocabulary) -> Any:
    rows = [(vocabulary.hplm(rng), vocabulary.text(rng)) for _ in range(rng.choice((1, 1, 2, 4)))]
    parameters = {"deadline_ms": 60_000, "level": "full"} if rng.random() < 0.2 else None
    return infer_message("hplm", good_tensors(rows), parameters)


def _change(rng: random.Random, message: Any) -> None:
    if not message.inputs:
        return
    tensor = rng.choice(message.inputs)
    match rng.randrange(12):
        case 0:
            tensor.name = rng.choice(TENSORS)
        case 1:
            tensor.datatype = rng.choice(DATATYPES)
        case 2 | 3:
            tensor.shape[:] = shape(rng, 1)
        case 4:
            del message.inputs[rng.randrange(len(message.inputs))]
        case 5:
            message.inputs.add().CopyFrom(tensor)
            if rng.random() < 0.5 and message.raw_input_contents:
                message.raw_input_contents.append(rng.choice(message.raw_input_contents))
        case 6 if message.raw_input_contents:
            del message.raw_input_contents[rng.randrange(len(message.raw_input_contents))]
        case 7:
            message.raw_input_contents.append(rng.randbytes(rng.randint(0, 9)))
        case 8:
            _type_contents(rng, message, tensor)
        case 9:
            output = message.outputs.add(name=rng.choice(("RESULT", "RESULT", "HIDDEN", "", "x" * 200)))
            _set_parameter(rng, output.parameters[parameter_name(rng)])
        case 10:
            message.model_name, message.model_version = model_name(rng), rng.choice(("", "1", "-1", "x", "9" * 30))
        case _:
            place = rng.choice((message.parameters, message.parameters, tensor.parameters))
            _set_parameter(rng, place[parameter_name(rng)])


def _type_contents(rng: random.Random, message: Any, tensor: Any) -> None:
    """Give contents in typed fields, beside the raw ones or instead of them."""
    if rng.random() < 0.7:
        del message.raw_input_contents[:]
    contents = tensor.contents
    for _ in range(rng.choice((1, 1, 2, 70))):
        match rng.randrange(5):
            case 0:
                contents.bool_contents.append(True)
            case 1:
                contents.int64_contents.append(rng.choice(EXTREMES))
            case 2:
                contents.fp32_contents.append(float("nan"))
            case _:
                contents.bytes_contents.append(rng.choice((b"", b"cat", b"acme/topic", b"\xff")))


def _set_parameter(rng: random.Random, parameter: Any) -> None:
    match rng.randrange(6):
        case 0:
            parameter.bool_param = True
        case 1:
            parameter.int64_param = rng.choice((*NUMBERS, *EXTREMES))
        case 2:
            parameter.string_param = rng.choice((*ODD_TEXTS, "auto", "full", "students"))
        case 3:
            parameter.double_param = rng.choice((0.5, 1e308, float("nan"), float("inf"), -1.0))
        case 4:
            parameter.uint64_param = rng.choice((0, 5, INT64, 2 * INT64 - 1))
        case _:
            parameter.ClearField("int64_param")
