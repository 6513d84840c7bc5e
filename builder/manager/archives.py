"""Zipped adapter folders: nothing in one may land outside its folder, or be larger than it says."""

from __future__ import annotations

import shutil
import stat
import struct
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from backends.errors import InvalidArgumentError, shown
from backends.storage import disk_full_is_an_error

_MAX_ENTRIES = 1000
MAX_UNPACKED_BYTES = 2 << 30
_MAX_NAME_BYTES = 255
_MAX_CONTENTS_BYTES = 1 << 20
_ENCRYPTED = 0x1
_METHODS = (ZIP_STORED, ZIP_DEFLATED)
"""Python unpacks the others whole, however large, before it compares their size with what was said."""
_END, _CONTENTS_BYTES = struct.Struct("<4s4H2LH"), 5
_END_MARK, _LARGE_ARCHIVE_MARK = b"PK\5\6", b"PK\6\7"
_LARGE_ARCHIVE_BYTES = 20
_LONGEST_COMMENT = 1 << 16
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
            place = target.joinpath(*PurePosixPath(entry.filename).parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, place.open("wb") as file:
                shutil.copyfileobj(source, file)
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target


def _opened(path: Path) -> ZipFile:
    """`ZipFile` reads the whole list of contents at once, so how long that is comes first."""
    with path.open("rb") as file:
        if _contents_bytes(file) > _MAX_CONTENTS_BYTES:
            raise InvalidArgumentError(f"{path} has a list of contents of more than {_MAX_CONTENTS_BYTES >> 20} MiB")
    return ZipFile(path)


def _contents_bytes(file: BinaryIO) -> int:
    """How long the list is, by the record that ends an archive, found as `ZipFile` finds it."""
    size_bytes = file.seek(0, 2)
    file.seek(max(0, size_bytes - _END.size - _LONGEST_COMMENT - _LARGE_ARCHIVE_BYTES))
    end = file.read()
    without_comment = len(end) - _END.size
    is_last = without_comment >= 0 and end[without_comment:].startswith(_END_MARK) and end.endswith(b"\0\0")
    place = without_comment if is_last else end.rfind(_END_MARK)
    if place < 0 or place + _END.size > len(end):
        raise BadZipFile("it has no end")
    if end[max(0, place - _LARGE_ARCHIVE_BYTES) : place].startswith(_LARGE_ARCHIVE_MARK):
        raise BadZipFile("it is in the format for archives of more than 4 GiB")
    return int(_END.unpack_from(end, place)[_CONTENTS_BYTES])


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
    _require_places(path, files)
    return files


def _require_places(path: Path, files: list[ZipInfo]) -> None:
    """Each file needs a place of its own, below nothing that is a file itself."""
    taken: set[PurePosixPath] = set()
    for place in (PurePosixPath(entry.filename) for entry in files):
        if place in taken:
            raise InvalidArgumentError(f"{path} holds {shown(str(place))} twice")
        taken.add(place)
    for place in taken:
        if not taken.isdisjoint(place.parents):
            raise InvalidArgumentError(f"{path}: {shown(str(place))} lies below what is a file itself")


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
