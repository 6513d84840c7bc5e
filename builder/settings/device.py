"""The name of the device that a training runs on; importing this imports no library."""

from __future__ import annotations

import re

AUTO = "auto"
_KNOWN = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def check_device(name: str) -> str:
    """Return the name; raise ValueError where it names no kind of device."""
    if not _KNOWN.fullmatch(name):
        raise ValueError(f"a device is auto, cpu, cuda or cuda:N, not {name!r}")
    return name
