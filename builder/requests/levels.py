"""Requests about what may be lost by answering early, which several others carry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from builder.requests.base import EXAMPLE_TASK, InputFile, Request, UploadKind

HeldOut = Annotated[
    InputFile,
    Field(
        description="Upload of kind task that certifies the ladder; texts that were trained on are left out.",
        examples=[EXAMPLE_TASK],
    ),
]
GuaranteeName = Literal["each", "fleet"]
LateName = Literal["settle", "reject"]


class LadderTarget(Request):
    """The target of a ladder: one of the three, by default a drop of one point."""

    max_drop: Annotated[
        float | None, Field(description="Points of accuracy that may be lost against all layers.", examples=[1.0])
    ] = None
    target_accuracy: Annotated[float | None, Field(description="The least accuracy of all answers, as 0.9.")] = None
    agreement: Annotated[float | None, Field(description="The least share of answers that stay, as 0.98.")] = None
    certainty: Annotated[float | None, Field(description="How likely the promise holds; by default 0.9.")] = None
    guarantee: Annotated[
        GuaranteeName | None,
        Field(description="Whether each hPLM keeps the target (the default), or the fleet's mean, from fewer texts."),
    ] = None
    deadline_ms: Annotated[
        float | None,
        Field(
            description="Deadline of most requests: under load the ladder has to be able to keep it by early answers."
        ),
    ] = None
    default_deadline: Annotated[
        bool | None, Field(description="Whether requests that name no deadline have this one; by default not.")
    ] = None
    late: Annotated[
        LateName | None,
        Field(
            description="Whether a row that all layers would answer too late settles for a doubtful answer (the "
            "default), or is rejected."
        ),
    ] = None
    after: Annotated[
        int | list[int] | None,
        Field(
            description="Layers before the early answer, or two to choose from; by default a sixth and a half of "
            "them, or with too few texts for two a third."
        ),
    ] = None


class DeclaredLadder(LadderTarget):
    """The target that an hPLM is tuned for; an update without one goes on with that of the version before."""

    held_out: HeldOut

    @property
    def files(self) -> dict[Path, UploadKind]:
        return {self.held_out: UploadKind.TASK}
