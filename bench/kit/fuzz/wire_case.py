"""A case of the wire fuzz: its name, which repeats it, and what it sends to a server."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from backends.errors import InvalidArgumentError
from bench.kit.fuzz.vocabulary import Vocabulary


@dataclass(frozen=True)
class CaseName:
    """Written `kind:seed:number`; the same name makes the same case."""

    kind: str
    seed: int
    number: int

    @classmethod
    def parse(cls, text: str) -> CaseName:
        """Raises InvalidArgumentError where the text is no such name."""
        kind, *numbers = text.split(":")
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise InvalidArgumentError(f"a case is written kind:seed:number, not {text!r}")
        return cls(kind, *map(int, numbers))

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}:{self.number}"

    @property
    def rng(self) -> random.Random:
        return random.Random(str(self))


@dataclass(frozen=True)
class HttpCase:
    """A request whose framing is right, so that it is answered."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GrpcCase:
    """A serialised message for a method of Triton's gRPC service."""

    message: bytes
    method: str = "ModelInfer"


@dataclass(frozen=True)
class RelayCase:
    """A request to `hplm_lower`, and what is made of its answer for `hplm_upper`: a good ticket beside bad tensors."""

    message: bytes
    relayed: Callable[[bytes], bytes]


@dataclass(frozen=True)
class SocketCase:
    """Bytes for one of the ports, in parts with pauses between them."""

    port: Literal["http", "grpc"]
    parts: Sequence[bytes]
    pause_s: float = 0.0
    half_closes: bool = False
    """Whether the sending half is closed after the last part, before an answer is waited for."""
    waits_s: float = 0.1


Case = HttpCase | GrpcCase | RelayCase | SocketCase
MakeCase = Callable[[random.Random, Vocabulary], Case]
