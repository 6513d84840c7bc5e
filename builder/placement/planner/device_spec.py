"""Devices as users write them: `4x16GB`, or with their hosts `2x16GB@alpha,2x24GB@beta`."""

from __future__ import annotations

import re

from backends.errors import InvalidArgumentError, shown
from builder.placement.planner.group import Device

MOST_DEVICES = 10_000
_PART = re.compile(r"(?:(-?\d+)x)?(-?\d+(?:\.\d+)?)(MB|GB|MiB|GiB)(?:@([A-Za-z0-9][A-Za-z0-9._-]*))?", re.ASCII)
_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
_DEFAULT_HOST = "localhost"


def parse_devices(text: str, reserve_bytes: int = 0) -> tuple[Device, ...]:
    """Read devices; of the memory of each, `reserve_bytes` are left to others.

    Raises:
        InvalidArgumentError: The text is not of the language, or there is no device or no memory.
    """
    found: list[Device] = []
    counts: dict[str, int] = {}
    for part in text.split(","):
        count, memory_bytes, host = _read(part.strip(), text)
        total = len(found) + count
        if count < 1 or total > MOST_DEVICES:
            raise InvalidArgumentError(f"--devices: there are 1 to {MOST_DEVICES:,} devices, not {total:,}")
        if memory_bytes <= 0:
            raise InvalidArgumentError(f"--devices: {shown(part.strip())} has no memory")
        if memory_bytes <= reserve_bytes:
            raise InvalidArgumentError(
                f"--devices: {shown(part.strip())} has {memory_bytes:,} bytes, and --reserve keeps "
                f"{reserve_bytes:,}; give a smaller --reserve"
            )
        for _ in range(count):
            number = counts[host] = counts.get(host, -1) + 1
            name = f"{number}" if host == _DEFAULT_HOST else f"{host}/{number}"
            found.append(Device(name, memory_bytes - reserve_bytes, host))
    return tuple(found)


def read_size(text: str, option: str) -> int:
    """Read an amount of memory, such as 2GB or 0."""
    if text == "0":
        return 0
    match = _PART.fullmatch(text)
    if match is None or match[1] or match[4] or float(match[2]) < 0:
        raise InvalidArgumentError(f"{option}: {shown(text)} is no amount of memory, such as 500MB or 2GB")
    return int(float(match[2]) * _UNITS[match[3]])


def _read(part: str, text: str) -> tuple[int, int, str]:
    match = _PART.fullmatch(part)
    if match is None:
        raise InvalidArgumentError(
            f"--devices: {shown(text)} is not of the form COUNTxMEMORY, such as 4x16GB, or 2x16GB@alpha,2x24GB@beta"
        )
    count, memory, unit, host = match.groups()
    return int(count or 1), int(float(memory) * _UNITS[unit]), host or _DEFAULT_HOST
