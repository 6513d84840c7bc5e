"""Files that are either whole or absent: checksums, fsync, and publishing by rename.

Usage:
    with publishing(home.bank_version("mini", "acme/returns", 3)) as folder:
        write_json(folder / "manifest.json", manifest)
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash
from safetensors.torch import save_file
from torch import Tensor

from backends.errors import CorruptFileError, StorageFullError

_CHUNK_BYTES = 4 << 20
_READABLE = 0o644
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def file_checksum(path: Path) -> str:
    """XXH3-128 of a file's bytes, as hexadecimal digits."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def json_checksum(content: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest with its own checksum, replacing an old one in one step."""
    text = json.dumps({**content, "checksum": json_checksum(content)}, indent=1, sort_keys=True, ensure_ascii=False)
    staged = path.with_name(path.name + ".new")
    with disk_full_is_an_error(path), staged.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote; a file whose checksum differs is refused."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CorruptFileError(f"{path} is missing") from error
    except ValueError as error:
        raise CorruptFileError(f"{path} is not readable JSON; it was truncated or overwritten") from error
    if not isinstance(content, dict) or content.pop("checksum", None) != json_checksum(content):
        raise CorruptFileError(f"{path} does not match its checksum")
    return content


def check_file(path: Path, size_bytes: int, checksum: str | None = None) -> None:
    """Refuse a file that is missing, truncated or, where a checksum is given, altered."""
    if not path.exists():
        raise CorruptFileError(f"{path} is missing")
    actual_bytes = path.stat().st_size
    if actual_bytes != size_bytes:
        raise CorruptFileError(f"{path} holds {actual_bytes} bytes where its manifest says {size_bytes}")
    if checksum is not None and file_checksum(path) != checksum:
        raise CorruptFileError(f"{path} does not match its checksum")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that, unlike the library's own, other users of the home may read."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    path.chmod(_READABLE)


def fsync_folder(folder: Path) -> None:
    """Make a folder's files and entries durable."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def disk_full_is_an_error(path: Path) -> Iterator[None]:
    """Turn "no space left" into one clear line that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise StorageFullError(f"no space left on the disk while writing {path}; nothing was published") from error
        raise


def staging_folder(target: Path) -> Path:
    """Where `publish_folder(target)` expects the content; a resumable build keeps its files here."""
    return target.with_name(f".{target.name}.building")


def publish_folder(target: Path) -> None:
    """Make the staged folder durable and move it to its final name in one step."""
    staged = staging_folder(target)
    with disk_full_is_an_error(target):
        fsync_folder(staged)
        if target.exists():
            # Moved aside rather than removed first: a crash between the two renames loses nothing.
            replaced = target.with_name(f".{target.name}.replaced")
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
            staged.rename(target)
            shutil.rmtree(replaced)
        else:
            staged.rename(target)
        fsync_folder_entry(target.parent)


def fsync_folder_entry(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """Yield an empty staging folder; on success it becomes `target`, on failure it is removed."""
    staged = staging_folder(target)
    if staged.exists():
        shutil.rmtree(staged)
    staged.mkdir(parents=True)
    try:
        with disk_full_is_an_error(target):
            yield staged
        publish_folder(target)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
