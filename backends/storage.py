"""Files that are either whole or absent: checksums, fsync, and publishing by rename.

Usage:
    with publishing(home.bank("mini", "acme/returns", 3)) as folder:
        write_json(folder / "manifest.json", manifest)
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from backends.errors import CorruptFileError, NotWritableError, StorageFullError, UnreadableFileError
from backends.file_lock import locked

if TYPE_CHECKING:
    from torch import Tensor

HALF_WRITTEN = ".new"
_STAGED_NAME = re.compile(rf"(\.[0-9a-f]{{8}})?{re.escape(HALF_WRITTEN)}$")
_CHUNK_BYTES = 4 << 20
_READABLE = 0o644
# EFBIG is a limit on one file; a build meets it as a disk that takes no more.
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REMEDIES = {
    errno.EROFS: "mount its file system for writing",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    # A file stands where a folder has to be.
    errno.EEXIST: "move it away",
    errno.ENOTDIR: "move the file away that stands in the place of a folder",
}
"""Of what keeps a program from writing, whatever it writes."""


def file_checksum(path: Path) -> str:
    """Compute the XXH3-128 of a file's bytes, as hexadecimal digits."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def json_checksum(content: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a durable file, replacing an old one in one step; a failure leaves the old one and nothing else."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which replaces an old one as `write_file` does: for what is too large to hold twice.

    Of several writers of one path each has a file of its own, and the last to end wins.
    """
    staged = path.with_name(f"{path.name}.{secrets.token_hex(4)}{HALF_WRITTEN}")
    with disk_full_is_an_error(path):
        try:
            with staged.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            staged.replace(path)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise


def finished_name(name: str) -> str:
    """Name what a half-written file becomes, also one of an earlier release; other files keep their names."""
    return _STAGED_NAME.sub("", name)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest with its own checksum, replacing an old one in one step."""
    text = json.dumps({**content, "checksum": json_checksum(content)}, indent=1, sort_keys=True, ensure_ascii=False)
    write_file(path, f"{text}\n".encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote; raise CorruptFileError where its checksum differs."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CorruptFileError(f"{path} is missing") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not readable JSON; it was truncated or overwritten") from error
    if not isinstance(content, dict) or content.pop("checksum", None) != json_checksum(content):
        raise CorruptFileError(f"{path} does not match its checksum")
    return content


def check_file(path: Path, size_bytes: int, checksum: str | None = None) -> None:
    """Reject a file that is missing, truncated or, where a checksum is given, altered."""
    if not path.exists():
        raise CorruptFileError(f"{path} is missing")
    actual_bytes = path.stat().st_size
    if actual_bytes != size_bytes:
        raise CorruptFileError(f"{path} holds {actual_bytes} bytes where its manifest says {size_bytes}")
    if checksum is not None and file_checksum(path) != checksum:
        raise CorruptFileError(f"{path} does not match its checksum")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that other users of the home may read."""
    from safetensors.torch import save  # PyTorch takes a second to import; most of what checks files needs none of it

    # Not the library's own writer: that one reports a full disk in its own way and lets only the owner read.
    write_file(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata))
    path.chmod(_READABLE)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Map the tensors of a safetensors file; raise CorruptFileError where it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, KeyError, RuntimeError, TypeError, ValueError) as error:  # of types that PyTorch lacks too
        raise CorruptFileError(f"{path} does not hold tensors: {error}") from error
    return tensors


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


@contextmanager
def read_errors_are_clear(path: Path) -> Iterator[None]:
    """Turn what the file system says into one clear line about a file, or about one in a folder."""
    try:
        yield
    except OSError as error:
        raise UnreadableFileError(f"{error.filename or path} cannot be read: {error.strerror}") from error


@contextmanager
def write_errors_are_clear(path: Path, otherwise: str = "") -> Iterator[None]:
    """Turn "read-only", "permission denied" and the like into one clear line that names the path.

    Args:
        path: What is written, where the file system does not say.
        otherwise: What the user can do in place of making it writable, such as "or name another folder".
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        why = f"{error.filename or path} cannot be written: {error.strerror}; {_REMEDIES[error.errno]}"
        raise NotWritableError(f"{why}, {otherwise}" if otherwise else why) from error


def require_writable(path: Path, otherwise: str = "") -> None:
    """Reject a folder that nothing could be written to, before long work whose result is to lie there.

    Args:
        path: The folder, which need not exist yet, nor need those that it is in.
        otherwise: As for `write_errors_are_clear`.

    Raises:
        NotWritableError: It is read-only, or not this user's.
    """
    with write_errors_are_clear(path, otherwise):
        code = errno.ENOTDIR if path.exists() and not path.is_dir() else why_not_writable(path)
        if code is not None:
            raise OSError(code, os.strerror(code), str(path))


def why_not_writable(path: Path) -> int | None:
    """Return the error code of a write there, as far as that is known beforehand; None where nothing hinders it."""
    found = path
    while not found.exists() and found != found.parent:
        found = found.parent
    if path != found and not found.is_dir():
        return errno.ENOTDIR
    if os.access(found, os.W_OK | os.X_OK if found.is_dir() else os.W_OK):
        return None
    return errno.EROFS if os.statvfs(found).f_flag & os.ST_RDONLY else errno.EACCES


def remove_folder(path: Path) -> None:
    """Remove a folder under another name, so that a kill in the middle leaves no part that looks like the whole."""
    doomed = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.garbage")
    try:
        path.rename(doomed)
    except FileNotFoundError:  # another process was faster
        return
    shutil.rmtree(doomed, ignore_errors=True)


def staging_folder(target: Path) -> Path:
    """Name the folder that `publish_folder(target)` publishes; a resumable build keeps its files there."""
    return target.with_name(f".{target.name}.building")


def publish_folder(target: Path) -> None:
    """Make the staged folder durable and move it to its final name in one step."""
    staged = staging_folder(target)
    with disk_full_is_an_error(target):
        fsync_folder(staged)
        replaced = _set_aside(target)
        try:
            staged.rename(target)
        except BaseException:
            if replaced is not None:
                replaced.rename(target)
            raise
        fsync_folder_entry(target.parent)
        if replaced is not None:
            _remove(replaced)


def _set_aside(target: Path) -> Path | None:
    """Move the old folder out of the way rather than remove it: a crash between two renames loses nothing."""
    replaced = _bring_back(target)
    if not target.exists():
        return None
    _remove(replaced)
    target.rename(replaced)
    return replaced


def _replaced(target: Path) -> Path:
    """Name where the old folder is put while a new one takes its place."""
    return target.with_name(f".{target.name}.replaced")


def is_set_aside(path: Path, target: Path) -> bool:
    """Whether it is all that there is of a target, since a crash between two renames; the next publication finds it."""
    return path == _replaced(target) and not target.exists()


def _remove(path: Path) -> None:
    """Remove a folder, or the file that was in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _bring_back(target: Path) -> Path:
    """Undo a swap that a crash cut short; return where the old folder is put during one."""
    replaced = _replaced(target)
    if replaced.exists() and not target.exists():
        replaced.rename(target)
    return replaced


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
    with disk_full_is_an_error(target), being_written(target):
        try:
            _bring_back(target)
            _make_empty(staged)
            yield staged
            publish_folder(target)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise


def being_written(target: Path) -> AbstractContextManager[None]:
    """Keep other processes from writing the same folder meanwhile."""
    return locked(target.with_name(f".{target.name}.writing"), f"{target} is being written by another process")


def _make_empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
