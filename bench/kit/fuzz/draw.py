"""Random choices of a case, and bad bytes, texts and numbers made of good ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from bench.kit.fuzz.rule import Case

Item = TypeVar("Item")
INTEGERS = (
    *(0, 1, -1, 2, -2, 7, 63, 64, 127, 128, 255, 256, -128, 32_767, 65_535, 65_536, -32_768),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64),
    *(10**30, -(10**30), 10**400),
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-300,
    1e300,
    1e39,
    65_504.0,
    65_520.0,
    5e-324,
    *map(float, ("nan", "inf", "-inf")),
)
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "\r\n",
        "a\nb",
        "\t",
        "\x1b[31m",
        "\x7f",
        "\x85",
        "\u2028",
        "\ufeff",
        "\ufffe",
        "\U0010ffff",
    ),
    *("é", "e\u0301", "ß", "ﬁ", "İ", "中文", "👩‍👩‍👧", "\u202eabc", "\ud800", "a\udfffb", "\udc80"),
    *("..", "../..", "/", "/etc/passwd", "a/b", "a/b/c", "con", "-", "--help", "~", "%s", "{0}", "$HOME", "*", "?"),
    *("null", "true", "NaN", "1e999", "1" * 5_000, "-1", "0x10", "１２", "hplm", "x" * 300, "x" * 20_000, "é" * 5_000),
    *("[" * 2_000, '{"a":' * 2_000, "a b " * 500, "\n" * 500, "'; DROP TABLE hplms; --"),
)
_PIECE = 64
_MOST_EDITS = 4


class Draw(random.Random):
    """The random generator of one case; the same case always draws the same."""

    def __init__(self, case: Case) -> None:
        super().__init__(str(case))
        self.case = case

    def happens(self, probability: float) -> bool:
        return self.random() < probability

    def integer(self) -> int:
        """A whole number that is special, near to such a one, or of any size."""
        match self.randrange(4):
            case 0:
                return self.randint(-3, 40)
            case 1:
                return self.choice(INTEGERS) + self.randint(-2, 2)
            case 2:
                return self.getrandbits(self.randint(1, 70)) * self.choice((1, -1))
        return self.choice(INTEGERS)

    def decimal(self) -> float:
        match self.randrange(3):
            case 0:
                return self.choice(FLOATS)
            case 1:
                return float(struct.unpack("d", self.randbytes(8))[0])
        return self.gauss(0, 10 ** self.randint(-3, 6))

    def text(self, good: Sequence[str] = ()) -> str:
        """A text that is special, or one of the good ones, whole or with edits."""
        if not good or self.happens(0.4):
            return self.choice(TEXTS)
        chosen = self.choice(good)
        return chosen if self.happens(0.3) else self.edited(chosen)

    def edited(self, text: str) -> str:
        """A text with some pieces cut, doubled, replaced or put in."""
        for _ in range(self.randint(1, _MOST_EDITS)):
            start = self.randint(0, len(text))
            end = min(len(text), start + self.randint(0, 8))
            text = (
                text[:start]
                + self.choice(("", text[start:end] * 2, self.choice(TEXTS), chr(self._point())))
                + text[end:]
            )
        return text

    def _point(self) -> int:
        return self.choice((self.randrange(128), self.randrange(0x800), self.randrange(0x11_0000)))

    def damaged(self, content: bytes) -> bytes:
        """Bytes with bits flipped, pieces cut, doubled, swapped, overwritten or put in."""
        edits: Sequence[Callable[[bytearray], bytearray]] = (
            *(self._flipped, self._flipped, self._overwritten, self._overwritten, self._cut_off, self._without),
            *(self._doubled, self._inserted, self._swapped, self._extended),
        )
        damaged = bytearray(content)
        for _ in range(self.choice((1, 1, 1, 2, self.randint(1, _MOST_EDITS)))):
            damaged = self.choice(edits)(damaged)
        return bytes(damaged) if self.happens(0.98) else self.randbytes(self.randrange(200))

    def _at(self, content: bytearray) -> int:
        """A position; half of them near the beginning, where headers are."""
        end = min(len(content), 48) if self.happens(0.5) else len(content)
        return self.randint(0, max(0, end - 1))

    def _flipped(self, content: bytearray) -> bytearray:
        for _ in range(self.choice((1, 1, 2, 8))):
            if content:
                content[self._at(content)] ^= 1 << self.randrange(8)
        return content

    def _overwritten(self, content: bytearray) -> bytearray:
        """Put a special number, in one of the usual forms, over what stands there."""
        at, form = self._at(content), self.choice("BHIQfdq")
        if form in "fd":
            number: float = self.choice(FLOATS) if form == "d" else self.choice((0.0, -1.0, *FLOATS[-3:]))
            packed = struct.pack(f"<{form}", number)
        else:
            size = struct.calcsize(f"<{form}")
            packed = (self.choice(INTEGERS) & (2 ** (8 * size) - 1)).to_bytes(size, "little")
        content[at : at + len(packed)] = packed
        return content

    def _cut_off(self, content: bytearray) -> bytearray:
        return content[: self.choice((0, 1, self._at(content), len(content) - 1, len(content) // 2))]

    def _without(self, content: bytearray) -> bytearray:
        at = self._at(content)
        del content[at : at + self.randint(1, _PIECE)]
        return content

    def _doubled(self, content: bytearray) -> bytearray:
        at = self._at(content)
        content[at:at] = content[at : at + self.randint(1, _PIECE)]
        return content

    def _inserted(self, content: bytearray) -> bytearray:
        at = self._at(content)
        content[at:at] = self.choice((self.randbytes(self.randint(1, _PIECE)), bytes(_PIECE), b"\xff" * 8))
        return content

    def _swapped(self, content: bytearray) -> bytearray:
        first, second, size = self._at(content), self._at(content), self.randint(1, 16)
        one, other = content[first : first + size], content[second : second + size]
        if len(one) == len(other):
            content[first : first + size], content[second : second + size] = other, one
        return content

    def _extended(self, content: bytearray) -> bytearray:
        return content + self.choice((b"\0", b"x", bytes(self.randint(1, 4_096)), content[: self.randint(1, 256)]))
