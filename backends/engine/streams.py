"""Where copies to the device run: beside the computing, on a CUDA stream of their own; on the CPU in their thread.

Usage:
    with copies.copying():
        hidden = rows.to(device)
    mark = copies.mark()
    …
    copies.wait(mark)  # what the current stream computes from here on finds the copies done
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

Mark = torch.cuda.Event | None
"""A point in the copies; None where they are done when they return."""


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
        """What is copied from here on finds done what the current stream computes now."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
