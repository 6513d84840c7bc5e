"""Settings of a rendered model: the parameters of its configuration, parsed once at start-up."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.errors import InvalidArgumentError
from backends.home import HOME_VARIABLE, Home

_HOME = "home"
_WHOLE = re.compile("[0-9]{1,18}")


@dataclass(frozen=True)
class ModelSettings:
    """The home, and the other parameters as Triton carries them: strings."""

    home: Home
    parameters: Mapping[str, str]

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> ModelSettings:
        """Read the arguments of `initialize`; `$HPLM_HOME` overrides the path from the repository to the home."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        relative = parameters.pop(_HOME, "..")
        repository = Path(args["model_repository"]).parent
        return cls(Home(Path(os.environ.get(HOME_VARIABLE) or repository / relative)), parameters)

    def with_parameters(self, parameters: Mapping[str, str]) -> ModelSettings:
        """Replace some of the settings."""
        return ModelSettings(self.home, {**self.parameters, **parameters})

    def text(self, name: str, default: str) -> str:
        return self.parameters.get(name, default)

    def number(self, name: str, default: int) -> int:
        value = self.parameters.get(name)
        if value is None:
            return default
        if not _WHOLE.fullmatch(value):
            raise InvalidArgumentError(f"model parameter {name!r} must be a whole number, not {value!r}")
        return int(value)

    def fraction(self, name: str, default: float) -> float:
        value = self.parameters.get(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidArgumentError(f"model parameter {name!r} must be a number, not {value!r}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self.parameters.get(name)
        if value is None:
            return default
        if value not in ("true", "false"):
            raise InvalidArgumentError(f"model parameter {name!r} must be 'true' or 'false', not {value!r}")
        return value == "true"
