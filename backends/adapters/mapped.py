"""Files that are mapped into memory: read here, where an error is an exception.

A page of a mapped file that cannot be read when it is first used ends the process, with the rows of all hPLMs.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from torch import Tensor

from backends.errors import UnreadableFileError
from backends.storage import read_tensors

_LIBC = ctypes.CDLL(None, use_errno=True)
_MADV_POPULATE_READ = 22
"""From Linux 5.14 on; earlier ones reject it with EINVAL."""
_ABSENT = b"\0"


@dataclass(frozen=True)
class MappedPages:
    """The pages of a file's tensors, which stay mapped for as long as this lives."""

    path: Path
    start: int
    size_bytes: int
    _tensors: tuple[Tensor, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, path: Path, tensors: Collection[Tensor]) -> Self:
        first = min((tensor.data_ptr() for tensor in tensors), default=0)
        end = max((tensor.data_ptr() + tensor.nbytes for tensor in tensors), default=0)
        start = first - first % mmap.PAGESIZE
        return cls(path, start, end - start, tuple(tensors))

    def require_readable(self) -> None:
        """Read the pages that are not in memory; raises UnreadableFileError.

        Looking whether all are there takes a tenth of the time, and is enough nearly always.
        """
        start, size = ctypes.c_void_p(self.start), ctypes.c_size_t(self.size_bytes)
        present = ctypes.create_string_buffer(-(-self.size_bytes // mmap.PAGESIZE))
        if not _LIBC.mincore(start, size, present) and _ABSENT not in present.raw:
            return
        if _LIBC.madvise(start, size, _MADV_POPULATE_READ) and ctypes.get_errno() != errno.EINVAL:
            raise UnreadableFileError(f"{self.path} cannot be read, or was shortened")


def load_mapped(path: Path) -> dict[str, Tensor]:
    """Map the tensors of a safetensors file, which is read meanwhile.

    Raises:
        FileError: It holds no tensors, or cannot be read.
    """
    tensors = read_tensors(path)
    MappedPages.of(path, tensors.values()).require_readable()
    return tensors
