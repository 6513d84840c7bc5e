"""Seeds, as every generator takes them."""

from __future__ import annotations

from backends.errors import InvalidArgumentError

SEED_LIMIT = 1 << 32
_STRIDE = 1_000_003


def require_seed(seed: int) -> None:
    if not 0 <= seed < SEED_LIMIT:
        raise InvalidArgumentError(f"the seed must be 0 or more and below {SEED_LIMIT}, not {seed}")


def step_seed(seed: int, step: int) -> int:
    """The seed of what one step of a training draws."""
    return seed * _STRIDE + step
