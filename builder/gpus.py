"""The machine's GPUs, as the driver names them; PyTorch takes a second to be asked."""

from __future__ import annotations

import re
import subprocess

from backends.engine.gpu_capability import Capability

_CAPABILITY = re.compile(r"([0-9]+)\.([0-9]+)")
_TIMEOUT_S = 20


def gpus_of_driver() -> list[str]:
    """Return the name and the memory of each GPU; none where no driver answers."""
    return _answers("name,memory.total")


def best_capability() -> Capability | None:
    """Return the highest capability of the machine's GPUs, or None where the driver does not name that of each."""
    found = [_CAPABILITY.fullmatch(line) for line in _answers("compute_cap")]
    known = [(int(each[1]), int(each[2])) for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None


def _answers(query: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):  # a driver may answer with bytes that are no text
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
