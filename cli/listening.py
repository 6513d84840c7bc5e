"""Who can reach a server: this machine alone, or others too."""

from __future__ import annotations

from ipaddress import ip_address

from backends.errors import InvalidArgumentError

INSECURE_VARIABLE = "HPLM_INSECURE"


def require_guarded(address: str, asks_for_tokens: bool, is_insecure: bool) -> None:
    """Check that a server that others reach asks for tokens, unless it is to go without.

    Raises:
        InvalidArgumentError: It listens beyond this machine, and anybody there could ask every tenant's hPLMs.
    """
    if not (is_loopback(address) or asks_for_tokens or is_insecure):
        raise InvalidArgumentError(
            f"on {address} others could ask every tenant's hPLMs; --auth tokens asks them for tokens, "
            "--insecure lets them, for behind a gateway"
        )


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
