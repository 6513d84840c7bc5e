"""Seeds, as every generator takes them."""

from __future__ import annotations

from backends.errors import InvalidArgumentError

SEED_LIMIT = 1 << 32


def require_seed(seed: int) -> None:
    if not 0 <= seed < SEED_LIMIT:
        raise InvalidArgumentError(f"the seed must be 0 or more and below {SEED_LIMIT}, not {seed}")
