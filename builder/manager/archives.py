"""Zipped adapter folders: nothing in one may land outside its folder, or be larger than it says."""

from __future__ import annotations

import shutil
import stat
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile, ZipInfo

from backends.errors import InvalidArgumentError
from backends.storage import disk_full_is_an_error

_MAX_ENTRIES = 1000
MAX_UNPACKED_BYTES = 2 << 30
_ENCRYPTED = 0x1
_DAMAGE = (BadZipFile, zlib.error, LZMAError, EOFError, ValueError, NotImplementedError)


def check_archive(path: Path) -> list[str]:
    """The files of an archive that is whole and safe to unpack."""
    try:
        with ZipFile(path) as archive:
            files = _checked_entries(path, archive)
            if damaged := archive.testzip():
                raise InvalidArgumentError(f"{path}: {damaged!r} is damaged")
            return [entry.filename for entry in files]
    except (*_DAMAGE, OSError) as error:
        raise InvalidArgumentError(f"{path} is not a readable zip archive: {error}") from error


def unpack(path: Path, target: Path) -> Path:
    """Unpack a checked archive; returns the folder that holds the files, which may be the only one inside."""
    check_archive(path)
    with disk_full_is_an_error(target), ZipFile(path) as archive:
        for entry in _checked_entries(path, archive):
            place = target.joinpath(*PurePosixPath(entry.filename).parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, place.open("wb") as file:
                shutil.copyfileobj(source, file)
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target


def _checked_entries(path: Path, archive: ZipFile) -> list[ZipInfo]:
    entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES:
        raise InvalidArgumentError(f"{path} holds {len(entries)} entries; an adapter has at most {_MAX_ENTRIES}")
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise InvalidArgumentError(f"{path} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
    for entry in entries:
        _require_safe(path, entry)
    files = [entry for entry in entries if not entry.is_dir()]
    if not files:
        raise InvalidArgumentError(f"{path} holds no files")
    return files


def _require_safe(path: Path, entry: ZipInfo) -> None:
    name = PurePosixPath(entry.filename)
    if name.is_absolute() or ".." in name.parts or "\\" in entry.filename or not name.parts:
        raise InvalidArgumentError(f"{path}: {entry.filename[:200]!r} lies outside the archive's own folder")
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidArgumentError(f"{path}: {entry.filename[:200]!r} is a link or a device, not a file")
    if entry.flag_bits & _ENCRYPTED:
        raise InvalidArgumentError(f"{path}: {entry.filename[:200]!r} is encrypted")
