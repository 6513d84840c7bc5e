"""The requests that the manager takes as jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from backends.errors import InvalidArgumentError
from builder.requests.base import Request, one_line
from builder.requests.domains import CreateDomain, DeleteDomain, RollbackDomain, UpdateDomain
from builder.requests.hplms import CreateHplm, DeleteHplm, ImportHplm, PinHplm, RollbackHplm, SelectHplm, UpdateHplm
from builder.requests.students import AddStudents, MakeStudents


class CollectGarbage(Request):
    """Remove versions that nothing needs any more, and what interrupted builds have left."""

    kind: Literal["gc"] = "gc"
    dry_run: Annotated[bool, Field(description="Only say what would be removed.")] = False
    keep: Annotated[int, Field(ge=0, description="Versions that stay on either side of the live one.")] = 1


JobRequest = Annotated[
    CreateDomain
    | UpdateDomain
    | RollbackDomain
    | DeleteDomain
    | CreateHplm
    | UpdateHplm
    | SelectHplm
    | RollbackHplm
    | PinHplm
    | DeleteHplm
    | ImportHplm
    | MakeStudents
    | AddStudents
    | CollectGarbage,
    Field(discriminator="kind"),
]
_REQUEST: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)


def device_of(request: JobRequest) -> str | None:
    """Return the device that a request asks for; None where it trains nothing."""
    training = request.retune if isinstance(request, ImportHplm) else request
    return getattr(training, "device", None)


def on_device(request: JobRequest, device: str) -> JobRequest:
    """Return the request with another device, where it trains anything."""
    change = {"device": device}
    if isinstance(request, ImportHplm):
        retune = request.retune and request.retune.model_copy(update=change)
        return request.model_copy(update={"retune": retune})
    return request if device_of(request) is None else request.model_copy(update=change)


def stored_request(content: dict[str, Any]) -> JobRequest:
    """Read a request as the database has it."""
    try:
        return _REQUEST.validate_python(content)
    except ValidationError as error:
        raise InvalidArgumentError(f"the stored request is not readable: {one_line(error)}") from error
