"""The options of a tuning, which `hplm create` and `hplm update` share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from backends.errors import InvalidArgumentError
from builder.settings.device import AUTO
from cli.options import DeviceOption

_OVERRIDES = ("epochs", "learning_rate", "patience", "class_weights", "seed")
_EARLY = "Tune on until lower layers answer too, so that more texts can leave early; as long as six epochs more."


@dataclass(frozen=True)
class TuningOptions:
    """Options left out take the tuning's default, or in an update what the live version was tuned with."""

    search: Annotated[
        int,
        typer.Option(
            help="Try this many settings (learning rate, adapters) and keep the best; the first are the given."
        ),
    ] = 1
    teacher: Annotated[
        Literal["dedicated"] | None,
        typer.Option(
            help="dedicated: first fine-tune the whole pretrained model on the task, then learn from its answers to "
            "the examples and to five rewritten texts of each, or those of --unlabelled. The best quality there is; it "
            "takes about four times as long."
        ),
    ] = None
    unlabelled: Annotated[
        Path | None,
        typer.Option(
            help="Texts like those of the task, one per line (of pairs, with a TAB between the two), that the "
            "dedicated teacher answers too. Three for each example are used at most; they teach more than rewritten "
            "ones."
        ),
    ] = None
    rank: Annotated[
        int | None,
        typer.Option(help="Rank of the adapters, LoRA on every linear layer. \\[default: 16]", show_default=False),
    ] = None
    bottleneck: Annotated[
        int | None, typer.Option(help="Bottleneck adapters of this width instead of LoRA.", show_default=False)
    ] = None
    entrance: Annotated[
        int | None,
        typer.Option(
            help="Width of an adapter of the hidden rows themselves, for tasks with words that the root knows little "
            "of.",
            show_default=False,
        ),
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the texts, at most. \\[default: 8, with a teacher 2]",
            show_default=False,
        ),
    ] = None
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.", show_default=False)] = None
    patience: Annotated[
        int | None,
        typer.Option(help="Epochs without a better dev result that end it. \\[default: none do]", show_default=False),
    ] = None
    class_weights: Annotated[
        Literal["none", "balanced"] | None,
        typer.Option(help="balanced: rare classes weigh as much as frequent ones.", show_default=False),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.", show_default=False)] = None
    early: Annotated[
        bool | None,
        typer.Option(
            "--early/--no-early",
            help=f"{_EARLY} \\[default: where a ladder is declared]",
            show_default=False,
        ),
    ] = None
    device: DeviceOption = AUTO
    settings: Annotated[
        Path | None,
        typer.Option(
            help='A JSON file with any settings of the tuning: {"dropout": 0.1, "recipe": {"norm_sites": ["output"]}, '
            "…}."
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """The fields of a request that these options fill."""
        return {
            "tune": self._changes(),
            "search": self.search,
            "teacher": self.teacher,
            "unlabelled": self.unlabelled,
            "early": self.early,
            "device": self.device,
        }

    def _changes(self) -> dict[str, Any]:
        """The changed settings: those of the file, and above them the options."""
        if self.rank is not None and self.bottleneck is not None:
            raise InvalidArgumentError("--rank and --bottleneck exclude each other")
        overrides = {name: getattr(self, name) for name in _OVERRIDES}
        changes = _read_settings(self.settings) | {
            name: value for name, value in overrides.items() if value is not None
        }
        recipe = changes.get("recipe", {}) | self._recipe()
        return {**changes, "recipe": recipe} if recipe else changes

    def _recipe(self) -> dict[str, Any]:
        recipe: dict[str, Any] = {}
        if self.rank is not None:
            from backends.adapters.adapter_set import LORA_MODULES  # PyTorch takes seconds to import

            recipe = {"bottleneck_sites": [], "lora_modules": list(LORA_MODULES), "rank": self.rank}
        if self.bottleneck is not None:
            from backends.adapters.adapter_set import SITES

            recipe = {"bottleneck_sites": list(SITES), "lora_modules": [], "width": self.bottleneck}
        return recipe if self.entrance is None else {**recipe, "entrance_width": self.entrance}


@dataclass(frozen=True)
class UpdateOptions(TuningOptions):
    """The same options, of which one has another default in an update."""

    early: Annotated[
        bool | None,
        typer.Option(
            "--early/--no-early",
            help=f"{_EARLY} \\[default: as last requested, else where the live version has a ladder or one is "
            "declared]",
            show_default=False,
        ),
    ] = None


def _read_settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("recipe", {}), dict):
        raise InvalidArgumentError(f"{path} holds no object with settings")
    return content
