"""What is fuzzed: a reader with good inputs of its own, from which cases draw bad ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from backends.errors import HplmError
from backends.home import Home
from bench.kit.fuzz.draw import Draw


class Target(ABC):
    """One reader.

    A case depends on its draw only, not on the cases before it.

    Args:
        home: A tiny home with roots, domains and hPLMs, which no target changes.
        scratch: An empty folder of this target's own.

    Attributes:
        name: Of the target, in cases and on the command line.
        cases: Number of cases in the full size.
        rejections: Exceptions by which the reader may reject.
    """

    name: ClassVar[str]
    cases: ClassVar[int]
    rejections: ClassVar[tuple[type[Exception], ...]] = (HplmError,)

    def __init__(self, home: Home, scratch: Path) -> None:
        self.home = home
        self.scratch = scratch

    @abstractmethod
    def attempt(self, draw: Draw) -> None:
        """Draw an input and have it read.

        Raises:
            HplmError: The reader rejects the input.
            HarmedError: A good neighbour in the same call was answered otherwise than alone.
        """

    def close(self) -> None:  # noqa: B027  most targets have nothing to close
        """End threads and close files."""
