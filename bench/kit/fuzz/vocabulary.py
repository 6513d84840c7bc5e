"""What fuzz cases are written with: names that a server knows, odd names, odd texts, odd numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from backends.wire import MAX_DEADLINE_MS, REQUEST_PARAMETERS

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
    "classification",
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "binary_data_size",
    "binary_data",
)
"""Names to which Triton itself gives a meaning, of a request, an input or an output."""


@dataclass(frozen=True)
class Vocabulary:
    """hPLMs that the server knows, and texts that it can answer."""

    hplms: Sequence[str]
    texts: Sequence[str]

    def hplm(self, rng: random.Random) -> str:
        """A live one, mostly."""
        if rng.random() < 0.75:
            return rng.choice(self.hplms)
        return rng.choice((*ODD_TEXTS, self.hplms[0].upper(), self.hplms[0] + "@1", "acme/nothing", "/", "a/b/c"))

    def text(self, rng: random.Random) -> str:
        """A good one, mostly."""
        return rng.choice(self.texts) if rng.random() < 0.75 else rng.choice(ODD_TEXTS)

    def encoded(self, rng: random.Random, value: str) -> bytes:
        """The value as bytes, now and then with some that are not UTF-8."""
        content = value.encode()
        return content if rng.random() < 0.85 else content[:4] + rng.choice(ODD_BYTES) + content[4:]


def model_name(rng: random.Random) -> str:
    """The ensemble, mostly; else one of its models or a name that there is not."""
    if rng.random() < 0.7:
        return "hplm"
    return rng.choice(("hplm_lower", "hplm_upper", "hplm_middle", "HPLM", "", "..", "x" * 500, "hplm\0", "hplm/infer"))


def parameter_name(rng: random.Random) -> str:
    pick = rng.random()
    if pick < 0.55:
        return rng.choice(REQUEST_PARAMETERS)
    return rng.choice(TRITON_PARAMETERS) if pick < 0.85 else rng.choice(ODD_TEXTS)


def shape(rng: random.Random, rows: int) -> list[int]:
    """A shape that is right for so many rows, or not."""
    odd = (rows, 1, 0, -1, rows + 1, 65, INT32 - 1, INT32, INT64 - 1, -INT64)
    match rng.randrange(8):
        case 0:
            return [rows, 1]
        case 1:
            return [rows]
        case 2:
            return []
        case 3:
            return [1 << 33, 1 << 33]
        case _:
            return [rng.choice(odd) for _ in range(rng.randint(1, 5))]
