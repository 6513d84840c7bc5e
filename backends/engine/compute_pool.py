"""Threads that compute the shares of a batch side by side.

Threads that share one product wait for each other at the end of every product, so a thread that the operating system
suspends delays all others each time. Shares of a batch wait for each other once, at the end of the batch. This is as
fast as shared products on an idle machine, and faster where the threads that bring the requests need the cores too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

import torch

from backends.engine.layouts.micro_batches import Sharing
from backends.heartbeat import Beat, no_beat

Share = TypeVar("Share")
Result = TypeVar("Result")

_WIDTH_PER_TOKEN = 12
"""A share has at least as many tokens as the hidden size divided by this.

Each share reads all weights, so small shares of wide layers take longer on an idle machine. Narrow layers end their
products, where threads that share one wait for each other, more often.
"""
_MOST_TOKENS = 1024
"""Shares of this size pass the layers fastest, because their intermediate states stay in the cache."""


class ComputePool:
    """A fixed number of threads; `sharing_for` says into how many shares a batch is cut for them.

    Args:
        threads: Number of threads; all of them compute a batch that is one share.
        device: On a GPU the calling thread computes all shares, one after the other; rows are always one share.
        beat: Called by what is computed, between two layers.
        most_at_once: Shares that are computed at once, if not as many as there are threads.
    """

    def __init__(
        self, threads: int, device: torch.device, beat: Beat = no_beat, most_at_once: int | None = None
    ) -> None:
        self.beat = beat
        self._threads = threads
        self._is_cpu = device.type == "cpu"
        # It starts its threads at first use.
        self._executor = ThreadPoolExecutor(most_at_once or threads, thread_name_prefix="compute")

    @property
    def num_stages(self) -> int:
        """Batches that are computed at once, each in a stage of its own."""
        return 1

    def passing(self, on_left_first: Callable[[], None]) -> AbstractContextManager[None]:
        """Tell when the batches that the calling thread runs leave the first of several stages."""
        return nullcontext()

    def sharing_for(self, hidden_size: int) -> Sharing:
        """Return the limits of shares of a model whose hidden states are this wide."""
        if not self._is_cpu:
            return Sharing()
        return Sharing(self._threads, max(1, hidden_size // _WIDTH_PER_TOKEN), _MOST_TOKENS)

    def run(self, compute: Callable[[Share], Result], shares: Sequence[Share]) -> list[Result]:
        """Compute all shares and return their results in order; an error is raised once all shares have ended."""
        if len(shares) == 1 or not self._is_cpu:
            take_threads(self._threads)
            return [compute(share) for share in shares]
        threads = max(1, self._threads // len(shares))
        futures = [self._executor.submit(partial(_compute, compute, share, threads)) for share in shares]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        self._executor.shutdown()


def _compute(compute: Callable[[Share], Result], share: Share, threads: int) -> Result:
    take_threads(threads)
    return compute(share)


def take_threads(count: int) -> None:
    """Set how many threads PyTorch computes with for the calling thread.

    PyTorch initialises a thread's count at its first read, with the count that any thread set last. So this reads
    before it sets.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)
