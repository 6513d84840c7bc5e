"""Seeds, as every generator takes them."""

from __future__ import annotations

from backends.errors import InvalidArgumentError

_LIMIT = 1 << 32


def require_seed(seed: int) -> None:
    if not 0 <= seed < _LIMIT:
        raise InvalidArgumentError(f"the seed must be 0 or more and below {_LIMIT}, not {seed}")
