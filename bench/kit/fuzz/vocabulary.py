"""What fuzz cases are written with: names that a server knows, odd names, odd texts, odd numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.wire import MAX_DEADLINE_MS, REQUEST_PARAMETERS
from bench.kit.fuzz.draw import Draw

INT32, INT64 = 1 << 31, 1 << 63
NUMBERS = (0, 1, -1, 2, 7, 64, 65, 1024, MAX_DEADLINE_MS, MAX_DEADLINE_MS + 1)
EXTREMES = (INT32 - 1, INT32, -INT32, 2 * INT32, INT64 - 1, -INT64)
DATATYPES = ("BYTES", "FP16", "INT64", "UINT8", "FP32", "BOOL", "UINT64", "INT32", "BF16", "bytes", "STRING", "")
TENSORS = ("MODEL", "TEXT", "HIDDEN", "TICKET", "WORDS", "RESULT", "", "model", "x" * 300)
ODD_TEXTS = ("", " ", "\n", "\t", "\0", "a\0b", "\u202e", "😀" * 9, "a\tb\tc", "é" * 400, "x" * 5000, "%s%n{}", "../..")
ODD_BYTES = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"caf\xe9", b"\xf4\x90\x80\x80", b"\0\0\0\0", b"\xfe\xff\0a")
TRITON_PARAMETERS = (
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "binary_data_output",
    "triton_enable_empty_final_response",
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "binary_data_size",
    "binary_data",
)
"""Names to which Triton itself gives a meaning, of a request, an input or an output.

Without `classification`: a number of classes of an output of strings, as `RESULT` is one, ends Triton 24.10 over HTTP
and gRPC; docs/explanation/security.md says what to do.
"""


@dataclass(frozen=True)
class Vocabulary:
    """hPLMs that the server knows, and texts that it can answer."""

    hplms: Sequence[str]
    texts: Sequence[str]

    def hplm(self, draw: Draw) -> str:
        """A live one, mostly."""
        if draw.random() < 0.75:
            return draw.choice(self.hplms)
        return draw.choice((*ODD_TEXTS, self.hplms[0].upper(), self.hplms[0] + "@1", "acme/nothing", "/", "a/b/c"))

    def text(self, draw: Draw) -> str:
        """A good one, mostly."""
        return draw.choice(self.texts) if draw.random() < 0.75 else draw.choice(ODD_TEXTS)

    def encoded(self, draw: Draw, value: str) -> bytes:
        """The value as bytes, now and then with some that are not UTF-8."""
        content = value.encode()
        return content if draw.random() < 0.85 else content[:4] + draw.choice(ODD_BYTES) + content[4:]


def model_name(draw: Draw) -> str:
    """The ensemble, mostly; else one of its models or a name that there is not."""
    if draw.random() < 0.7:
        return "hplm"
    return draw.choice(("hplm_lower", "hplm_upper", "hplm_middle", "HPLM", "", "..", "x" * 500, "hplm\0", "hplm/infer"))


def parameter_name(draw: Draw) -> str:
    pick = draw.random()
    if pick < 0.55:
        return draw.choice(REQUEST_PARAMETERS)
    return draw.choice(TRITON_PARAMETERS) if pick < 0.85 else draw.choice(ODD_TEXTS)


def shape(draw: Draw, rows: int) -> list[int]:
    """A shape that is right for so many rows, or not."""
    odd = (rows, 1, 0, -1, rows + 1, 65, INT32 - 1, INT32, INT64 - 1, -INT64)
    match draw.randrange(8):
        case 0:
            return [rows, 1]
        case 1:
            return [rows]
        case 2:
            return []
        case 3:
            return [1 << 33, 1 << 33]
        case _:
            return [draw.choice(odd) for _ in range(draw.randint(1, 4))]
