"""Settings of an export for `hplm_lower`: fragments that no table holds, and the queue in front of the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, cast, get_args

from backends.errors import InvalidArgumentError, shown
from backends.model_settings import ModelSettings

_MOST_FOLLOWING_BYTES = 3
"""Bytes of a character in UTF-8 after its first."""
LowerDtype = Literal["bf16", "fp32", "int8"]


def lower_dtype_beside(upper: str) -> LowerDtype:
    """Return what lower layers compute in beside upper layers of a dtype: in the same, but for fp8, which GPUs have."""
    if upper == "fp32":
        return "fp32"
    return "int8" if upper == "int8" else "bf16"


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
        dtype: Data type of the lower layers that compute; `bf16` and `int8` where the machine is fast at it.
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
                f"lower layers compute in one of {', '.join(get_args(LowerDtype))}, not {self.dtype!r}"
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


@dataclass(frozen=True)
class TextLimits:
    """Limits of what a caller sends.

    Attributes:
        max_text_bytes: A longer text, or segment of a pair, is cut before anything reads it.
        max_request_bytes: A request of more is rejected.
    """

    max_text_bytes: int = 64 << 10
    max_request_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.max_text_bytes <= self.max_request_bytes:
            raise InvalidArgumentError(f"a text has 1 to {self.max_request_bytes:,} bytes, not {self.max_text_bytes:,}")

    @property
    def parameters(self) -> dict[str, str]:
        """The settings as parameters of a model's configuration."""
        return {"max_text_bytes": str(self.max_text_bytes)}

    @classmethod
    def from_model(cls, settings: ModelSettings) -> TextLimits:
        return cls(settings.number("max_text_bytes", cls.max_text_bytes))

    def cut(self, text: bytes) -> bytes:
        """Cut a text, but not within a character."""
        if len(text) <= self.max_text_bytes:
            return text
        end = self.max_text_bytes
        while end > max(0, self.max_text_bytes - _MOST_FOLLOWING_BYTES) and text[end] & 0xC0 == 0x80:
            end -= 1
        return text[:end]


@dataclass(frozen=True)
class QueueSettings:
    """Limits of the queue of one process.

    Attributes:
        max_rows: Rows that may wait.
        request_rows: Rows of one request, where Triton lets more through; None: it does not.
        max_bytes: Bytes of text that may wait; of one tenant, half of them.
        engine_bytes: Where the engine holds more bytes of hidden rows, rows without a deadline wait here.
        batch_rows: Rows that are encoded together, at most.
        tenant_quota: Rows of one tenant that may wait; None: half of all.
    """

    max_rows: int = 10_000
    request_rows: int | None = None
    max_bytes: int = 64 << 20
    engine_bytes: int = 64 << 20
    batch_rows: int = 64
    tenant_quota: int | None = None

    @property
    def max_rows_of_tenant(self) -> int:
        return max(1, self.max_rows // 2) if self.tenant_quota is None else self.tenant_quota

    @property
    def max_bytes_of_tenant(self) -> int:
        return self.max_bytes // 2

    @property
    def max_rows_of_request(self) -> int:
        return self.max_rows if self.request_rows is None else min(self.request_rows, self.max_rows)

    @classmethod
    def from_model(cls, settings: ModelSettings, instances: int) -> QueueSettings:
        """Share the limits of the model between its processes."""
        max_rows = settings.number("max_waiting", cls.max_rows)
        if max_rows < 1:
            raise InvalidArgumentError(f"at least 1 row may wait, not {max_rows}")
        quota = settings.number("tenant_quota", 0) if "tenant_quota" in settings.parameters else None
        return cls(
            max(1, max_rows // instances),
            settings.number("max_request_rows", 0) or None,
            cls.max_bytes // instances,
            tenant_quota=None if quota is None else max(1, quota // instances),
        )
