"""Copies to the device: on a CUDA stream of their own, beside the computing; on a CPU in the calling thread.

Usage:
    with copies.copying():
        hidden = rows.to(device)
    mark = copies.mark()
    …
    copies.wait(mark)  # the current stream computes what follows after the copies
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

Mark = torch.cuda.Event | None
"""A point in the copies; None on a CPU, where a copy is done when it returns."""


class CopyStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copying(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        return None if self._stream is None else self._stream.record_event()

    def wait(self, mark: Mark) -> None:
        if mark is not None:
            torch.cuda.current_stream(self._device).wait_event(mark)

    def wait_for_computing(self) -> None:
        """Let later copies begin only after the current stream's computing so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
