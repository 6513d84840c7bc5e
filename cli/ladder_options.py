"""The options of a ladder's target, which `hplm create`, `update` and `select` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backends.errors import InvalidArgumentError

if TYPE_CHECKING:
    from builder.requests.levels import DeclaredLadder

MaxDropOption = Annotated[
    float | None, typer.Option(help="Points of accuracy that may be lost against all layers. \\[default: 1]")
]
TargetAccuracyOption = Annotated[
    float | None, typer.Option(help="In place of --max-drop: the least accuracy of all answers, as 0.9.")
]
AgreementOption = Annotated[
    float | None, typer.Option(help="In place of --max-drop: the least share of answers that stay, as 0.98.")
]
AfterOption = Annotated[
    int | None, typer.Option(help="Layers before the early answer. \\[default: a third, at least 2]")
]


@dataclass(frozen=True)
class LadderOptions:
    """What may be lost by answering early; in an update by default what the live version was made for."""

    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Labelled texts, not trained on, that certify a ladder: texts that are sure after some layers are "
            "then answered there ('hplm select' makes one later)."
        ),
    ] = None
    max_drop: MaxDropOption = None
    target_accuracy: TargetAccuracyOption = None
    agreement: AgreementOption = None
    certainty: Annotated[float | None, typer.Option(help="How likely the promise holds. \\[default: 0.9]")] = None
    after: AfterOption = None

    def ladder(self) -> DeclaredLadder | None:
        """The ladder of a request that these options ask for."""
        from builder.requests.levels import DeclaredLadder

        given: dict[str, Any] = {
            "max_drop": self.max_drop,
            "target_accuracy": self.target_accuracy,
            "agreement": self.agreement,
            "certainty": self.certainty,
            "after": self.after,
        }
        if self.held_out is not None:
            return DeclaredLadder(held_out=self.held_out, **given)
        for name, value in given.items():
            if value is not None:
                option = name.replace("_", "-")
                raise InvalidArgumentError(f"--{option} needs --held-out: texts that certify the ladder")
        return None
