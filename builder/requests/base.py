"""The base of all requests, and the fields that several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    WithJsonSchema,
)

from backends.errors import InvalidArgumentError
from backends.names import check_hplm_id, check_name, split_domain
from backends.registry.registry import Registry
from builder.requests.targets import DomainTarget, Target
from builder.root_choice import chosen_root
from builder.settings.device import check_device

EXAMPLE_CORPUS = f"corpus-{'3b5d5c3712955042' * 4}"
EXAMPLE_TASK = f"task-{'aec070645fe53ee3' * 4}"
EXAMPLE_ADAPTER = f"adapter-{'5577e6dd0662f91c' * 4}"


class UploadKind(StrEnum):
    """The content of a request's file."""

    CORPUS = "corpus"
    TASK = "task"
    ADAPTER = "adapter"


InputFile = Annotated[Path, Strict(False), WithJsonSchema({"type": "string"})]
"""A file of this machine; in a request to the manager the ID of an upload, until its worker puts the file's path in."""
TaskKind = Literal["classification", "ner", "regression"]
Device = Annotated[
    str,
    AfterValidator(check_device),
    Field(description="Where to train: auto (a GPU where there is one), cpu, cuda or cuda:N."),
]
HplmId = Annotated[
    str,
    AfterValidator(check_hplm_id),
    Field(description="The hPLM, as tenant/name.", examples=["acme/returns"]),
]
RootName = Annotated[str | None, Field(description="Which root; not needed while there is only one.")]
DomainName = Annotated[
    str,
    AfterValidator(lambda name: check_name(name, "domain")),
    Field(description="The domain's name.", examples=["shop"]),
]
MOST_VERSION = 2**31 - 1
EarlierVersion = Annotated[
    int | None,
    Field(ge=1, le=MOST_VERSION, description="Where to go back to; by default the version before."),
]


class Request(BaseModel):
    """A checked request; it is immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def settled(self, registry: Registry) -> Self:
        """Fill in the root that is meant."""
        return self

    def with_files(self, paths: Mapping[Path, Path]) -> Self:
        """Replace files by others, as uploads by the files that hold them."""
        fields = type(self).model_fields
        return self.model_copy(update={name: _replaced(getattr(self, name), paths) for name in fields})

    @property
    def target(self) -> Target | None:
        """The target that the request changes; None if that is nothing in particular."""
        return None

    @property
    def target_must_exist(self) -> bool:
        """Whether the target must exist; otherwise it must not."""
        return True

    @property
    def needed(self) -> Target | None:
        """The target that has to stay as it is while the work runs; of a request that is `settled`."""
        return None

    @property
    def tune_changes(self) -> dict[str, Any]:
        """Settings of a tuning, for a check before the work begins."""
        return {}

    @property
    def files(self) -> dict[Path, UploadKind]:
        """The files that the work reads."""
        return {}


class RootedRequest(Request):
    """A request about one root, which need not be named while there is only one."""

    root: RootName = None

    def settled(self, registry: Registry) -> Self:
        """Fill in the root that is meant."""
        return self.model_copy(update={"root": chosen_root(registry, self.root, "in 'root'")})

    @property
    def root_name(self) -> str:
        if self.root is None:
            raise InvalidArgumentError("the request names no root")
        return self.root

    def domain_named(self, reference: str) -> DomainTarget:
        """The domain of NAME or NAME@VERSION."""
        name, _ = split_domain(reference)
        return DomainTarget(self.root_name, name)


def one_line(error: ValidationError) -> str:
    """The first problem of a request, with the name of its field."""
    problem = error.errors()[0]
    field = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    return f"{field}: {message}" if field else message


def _replaced(value: object, paths: Mapping[Path, Path]) -> object:
    match value:
        case Path():
            return paths.get(value, value)
        case list():
            return [_replaced(one, paths) for one in value]
        case Request():
            return value.with_files(paths)
        case _:
            return value
