"""Settings of the stack where an export names none; apart from PyTorch, so that commands can read them."""

from __future__ import annotations

DTYPE = "bf16"
NUM_SLOTS = 65
"""With slot 0, which stands for no adapter."""
LAYOUT = "ragged"
