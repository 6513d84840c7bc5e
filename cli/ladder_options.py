"""The options of a ladder's target, which `hplm create`, `update` and `select` share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from backends.errors import InvalidArgumentError

if TYPE_CHECKING:
    from builder.requests.levels import DeclaredLadder, LadderTarget

MaxDropOption = Annotated[
    float | None,
    typer.Option(help="Points of accuracy that may be lost against all layers. \\[default: as before, at first 1]"),
]
TargetAccuracyOption = Annotated[
    float | None, typer.Option(help="In place of --max-drop: the least accuracy of all answers, as 0.9.")
]
AgreementOption = Annotated[
    float | None, typer.Option(help="In place of --max-drop: the least share of answers that stay, as 0.98.")
]
CertaintyOption = Annotated[
    float | None, typer.Option(help="How likely each hPLM keeps the target. \\[default: as before, at first 0.9]")
]
GuaranteeOption = Annotated[
    Literal["each", "fleet"] | None,
    typer.Option(
        help="Who keeps the target: each hPLM, or the fleet in the mean, which takes fewer texts. \\[default: as "
        "before, at first each]"
    ),
]
DeadlineOption = Annotated[
    float | None,
    typer.Option(
        help="Deadline of most requests: says whether early answers keep it where all layers do not, under full load. "
        "Goes by the cost model of 'hplm profile'."
    ),
]
DefaultDeadlineOption = Annotated[
    bool | None,
    typer.Option(
        "--default-deadline/--no-default-deadline",
        help="Requests that name no deadline have that of --deadline-ms. \\[default: as before, at first not]",
    ),
]
LateOption = Annotated[
    Literal["settle", "reject"] | None,
    typer.Option(
        help="What becomes of a row that all layers would answer too late: it settles for a doubtful answer, or is "
        "rejected. \\[default: as before, at first settle]"
    ),
]
AfterOption = Annotated[
    list[int] | None,
    typer.Option(
        help="Layers before the early answer; named twice, the one that costs less is chosen. \\[default: a sixth and "
        "a half of them; with too few texts for two, a third]"
    ),
]


@dataclass(frozen=True)
class TargetOptions:
    """What may be lost by answering early."""

    max_drop: MaxDropOption = None
    target_accuracy: TargetAccuracyOption = None
    agreement: AgreementOption = None
    certainty: CertaintyOption = None
    guarantee: GuaranteeOption = None
    deadline_ms: DeadlineOption = None
    default_deadline: DefaultDeadlineOption = None
    late: LateOption = None
    after: AfterOption = None

    @property
    def given(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(TargetOptions)}

    def requested(self) -> LadderTarget:
        from builder.requests.levels import LadderTarget

        return LadderTarget(**self.given)


@dataclass(frozen=True)
class LadderOptions(TargetOptions):
    """The target of a tuning; of an update by default what the live version was made for."""

    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Labelled texts, not trained on, that certify a ladder: texts that are sure after some layers are "
            "then answered there ('hplm select' makes one later)."
        ),
    ] = None

    def ladder(self) -> DeclaredLadder | None:
        """The ladder of a request that these options ask for."""
        from builder.requests.levels import DeclaredLadder

        if self.held_out is not None:
            return DeclaredLadder(held_out=self.held_out, **self.given)
        for name, value in self.given.items():
            if value is not None:
                option = name.replace("_", "-")
                raise InvalidArgumentError(f"--{option} needs --held-out: texts that certify the ladder")
        return None
