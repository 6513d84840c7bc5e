"""The file that names the servers of other machines for a gateway, in TOML.

[[server]]
name = "server-1"          # its tenants stay with this name
address = "10.0.0.5"
http = 8000                # these are the defaults
grpc = 8001
health = 8003
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.errors import InvalidArgumentError
from builder.fleet.upstream import Upstream
from builder.requests.base import one_line
from builder.serving.config import MAX_PORT

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_ADDRESS = r"^[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}$"


class _Server(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=_NAME)
    address: str = Field(pattern=_ADDRESS)
    http: int = Field(8000, ge=1, le=MAX_PORT)
    grpc: int = Field(8001, ge=1, le=MAX_PORT)
    health: int = Field(8003, ge=1, le=MAX_PORT)


class _Hosts(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    server: list[_Server] = Field(min_length=1)


def read_hosts(path: Path) -> list[Upstream]:
    """Read the servers.

    Raises:
        InvalidArgumentError: The file is no such file; the message says where.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} is no TOML: {error}") from error
    try:
        hosts = _Hosts.model_validate(content)
    except ValidationError as error:
        raise InvalidArgumentError(f"{path}: {one_line(error)}") from error
    return [Upstream(**server.model_dump()) for server in hosts.server]
