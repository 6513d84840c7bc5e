"""Settings of an export for fragments that no table holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, cast, get_args

from backends.errors import InvalidArgumentError, shown
from backends.model_settings import ModelSettings

LowerDtype = Literal["bf16", "fp32"]


class Missing(StrEnum):
    """Treatment of a fragment that no table of a chain holds."""

    FALLBACK = "fallback"
    COMPUTE = "compute"
    LEARN = "learn"


@dataclass(frozen=True)
class FillingSettings:
    """Settings of one process.

    Attributes:
        missing: Treatment of missing fragments.
        overlay_mb: Memory for the learned fragments of one root, in MB.
        compute_limit: Number of fragments that may be computed while one call waits.
        dtype: Data type of the lower layers that compute; `bf16` where the machine is fast at it.
    """

    missing: Missing = Missing.COMPUTE
    overlay_mb: int = 256
    compute_limit: int = 4096
    dtype: LowerDtype = "bf16"

    def __post_init__(self) -> None:
        if self.overlay_mb < 1:
            raise InvalidArgumentError(f"an overlay needs at least 1 MB, not {self.overlay_mb}")
        if self.compute_limit < 1:
            raise InvalidArgumentError(f"at least 1 fragment of a batch is computed, not {self.compute_limit}")
        if self.dtype not in get_args(LowerDtype):
            raise InvalidArgumentError(
                f"lower layers compute in {' or '.join(get_args(LowerDtype))}, not {self.dtype!r}"
            )

    @property
    def fills(self) -> bool:
        return self.missing is not Missing.FALLBACK

    @property
    def parameters(self) -> dict[str, str]:
        """The settings as parameters of a model's configuration."""
        return {
            "missing": self.missing.value,
            "overlay_mb": str(self.overlay_mb),
            "compute_limit": str(self.compute_limit),
            "dtype": self.dtype,
        }

    @classmethod
    def from_model(cls, settings: ModelSettings) -> FillingSettings:
        missing = settings.text("missing", cls.missing)
        if missing not in list(Missing):
            known = ", ".join(Missing)
            raise InvalidArgumentError(f"model parameter 'missing' is {shown(missing)}, not one of {known}")
        return cls(
            Missing(missing),
            settings.number("overlay_mb", cls.overlay_mb),
            settings.number("compute_limit", cls.compute_limit),
            cast(LowerDtype, settings.text("dtype", cls.dtype)),
        )
