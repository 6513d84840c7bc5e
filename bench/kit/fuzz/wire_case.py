"""What a case of the wire fuzz sends to a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.vocabulary import Vocabulary


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


WireCase = HttpCase | GrpcCase | RelayCase | SocketCase
MakeCase = Callable[[Draw, Vocabulary], WireCase]
