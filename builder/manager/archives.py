"""Zipped adapter folders: nothing in one may land outside its folder, or be larger than it says."""

from __future__ import annotations

import shutil
import stat
import zlib
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from backends.errors import InvalidArgumentError, shown
from backends.storage import disk_full_is_an_error

_MAX_ENTRIES = 1000
MAX_ARCHIVE_BYTES = 64 << 20
MAX_UNPACKED_BYTES = 2 << 30
_MAX_NAME_BYTES = 255
_ENCRYPTED = 0x1
_METHODS = (ZIP_STORED, ZIP_DEFLATED)
"""Python unpacks the others whole, however large, before it compares their size with what was said."""
_ENTRY_MARK = b"PK\1\2"
_DAMAGE = (BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError)


def check_archive(path: Path) -> list[str]:
    """The files of an archive that is whole and safe to unpack."""
    try:
        with _opened(path) as archive:
            files = _checked_entries(path, archive)
            if damaged := archive.testzip():
                raise InvalidArgumentError(f"{path}: {damaged!r} is damaged")
            return [entry.filename for entry in files]
    except (*_DAMAGE, OSError) as error:
        raise InvalidArgumentError(f"{path} is not a readable zip archive: {error}") from error


def unpack(path: Path, target: Path) -> Path:
    """Unpack a checked archive; returns the folder that holds the files, which may be the only one inside."""
    check_archive(path)
    with disk_full_is_an_error(target), _opened(path) as archive:
        for entry in _checked_entries(path, archive):
            file_path = target.joinpath(*PurePosixPath(entry.filename).parts)
            file_path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, file_path.open("wb") as file:
                shutil.copyfileobj(source, file)
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target


def _opened(path: Path) -> ZipFile:
    """Open an archive whose list of contents is short: `ZipFile` keeps an object for each of its entries."""
    if path.stat().st_size > MAX_ARCHIVE_BYTES:
        raise InvalidArgumentError(f"{path} is larger than {MAX_ARCHIVE_BYTES >> 20} MiB, the most for an adapter")
    if path.read_bytes().count(_ENTRY_MARK) > _MAX_ENTRIES:
        raise InvalidArgumentError(f"{path} holds too many entries; an adapter has at most {_MAX_ENTRIES}")
    return ZipFile(path)


def _checked_entries(path: Path, archive: ZipFile) -> list[ZipInfo]:
    entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise InvalidArgumentError(f"{path} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
    for entry in entries:
        _require_safe(path, entry)
    files = [entry for entry in entries if not entry.is_dir()]
    if not files:
        raise InvalidArgumentError(f"{path} holds no files")
    _require_distinct(path, files)
    return files


def _require_distinct(path: Path, files: list[ZipInfo]) -> None:
    """Require that no two files have one name, and that none lies below another."""
    names: set[PurePosixPath] = set()
    for name in (PurePosixPath(entry.filename) for entry in files):
        if name in names:
            raise InvalidArgumentError(f"{path} holds {shown(str(name))} twice")
        names.add(name)
    for name in names:
        if not names.isdisjoint(name.parents):
            raise InvalidArgumentError(f"{path}: {shown(str(name))} lies below what is a file itself")


def _require_safe(path: Path, entry: ZipInfo) -> None:
    name = PurePosixPath(entry.filename)
    if len(entry.filename.encode(errors="replace")) > _MAX_NAME_BYTES:
        raise InvalidArgumentError(f"{path}: {shown(entry.filename)} is longer than {_MAX_NAME_BYTES} bytes")
    if name.is_absolute() or ".." in name.parts or "\\" in entry.filename or not name.parts:
        raise InvalidArgumentError(f"{path}: {shown(entry.filename)} lies outside the archive's own folder")
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidArgumentError(f"{path}: {shown(entry.filename)} is a link or a device, not a file")
    if entry.compress_type not in _METHODS:
        raise InvalidArgumentError(f"{path}: {shown(entry.filename)} is neither stored nor deflated, as most zips are")
    if entry.flag_bits & _ENCRYPTED:
        raise InvalidArgumentError(f"{path}: {shown(entry.filename)} is encrypted")
