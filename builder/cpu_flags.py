"""The processor's instructions, as the system names them; PyTorch takes a second to be asked."""

from __future__ import annotations

import re
from pathlib import Path

FAST_BF16 = frozenset(("amx_bf16", "avx512_bf16"))
FAST_INT8 = ("avx512_vnni", "avx2")
"""The fastest first."""
_INFORMATION = Path("/proc/cpuinfo")


def cpu_flags() -> frozenset[str]:
    text = _INFORMATION.read_text(encoding="utf-8")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(flags.group(1).split()) if flags else frozenset()
