"""Uploaded files: kept by their content under `<home>/uploads/`, checked before they have a name, never changed.

Usage:
    with uploads.receiving(UploadKind.CORPUS, "shop.txt") as incoming:
        incoming.write(chunk)
        upload = incoming.keep(CHECKS[UploadKind.CORPUS])
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from backends.errors import ConflictError, HplmError, InvalidArgumentError, NotFoundError, shown
from backends.fields import Fields
from backends.home import Home
from backends.storage import disk_full_is_an_error, publishing, read_json, write_json
from builder.manager.archives import MAX_ARCHIVE_BYTES
from builder.manager.naming import replacing_path_in_errors
from builder.manager.open_uploads import OpenUpload, OpenUploads
from builder.manager.quotas import no_room_for, uploads_full
from builder.manager.unchanged import Unchanged
from builder.requests.base import UploadKind

LOGGER = logging.getLogger(__name__)
_MANIFEST = "upload.json"
_INCOMING_PREFIX = ".incoming-"
_UNPUBLISHED = ".building"
_OTHERS_TURN_S = 0.02
_NAME = re.compile(r"[^\x00-\x1f/\\]{1,200}")


_SUFFIXES = {UploadKind.CORPUS: "txt", UploadKind.TASK: "data", UploadKind.ADAPTER: "zip"}


class UploadTooLargeError(InvalidArgumentError):
    """More bytes than the manager takes."""


@dataclass(frozen=True)
class Upload:
    """A file that was taken; `id` names its kind and content, so the same file again is the same upload."""

    id: str
    kind: UploadKind
    name: str
    size_bytes: int
    sha256: str
    summary: str
    created_s: float
    tenant: str | None = None
    """Whose admin has sent it; the same file of another tenant is another upload."""


class Uploads:
    """Uploads of at most `max_bytes` each; the default is for those who only read."""

    def __init__(
        self,
        home: Home,
        max_bytes: int = 0,
        idle: Unchanged | None = None,
        quota_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self.folder = home.path / "uploads"
        self.max_bytes = max_bytes
        self._idle = idle or Unchanged()
        self._quota_of = quota_of
        self._keeping = threading.Lock()
        self._open = OpenUploads()

    def sweep(self, idle_s: float = 0.0) -> None:
        """Remove the remains of unfinished uploads and deletions that were not written to for `idle_s`.

        That is the time since a sweep first found them as they are, whatever the wall clock says. Without a time, call
        this only while no upload is being received.
        """
        found = [path for path in self.folder.glob(".*") if _is_unfinished(path)]
        self._idle.keep(found)
        for path in found:
            with suppress(FileNotFoundError):  # it has ended meanwhile
                status = path.stat()
                if self._idle.seconds(path, (status.st_mtime_ns, status.st_size)) >= idle_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    @contextmanager
    def receiving(self, kind: UploadKind, name: str, tenant: str | None = None) -> Iterator[Incoming]:
        """A file to write an upload into; it is gone afterwards unless it was kept.

        To begin reads the manifests of all uploads where the tenant has a quota.

        Raises:
            QuotaError: The tenant keeps as much as it may, or has as many uploads under way.
            UnavailableError: As many are under way as may be.
        """
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise InvalidArgumentError(f"file name {shown(name)} is not allowed: no slashes, at most 200 characters")
        path = self.folder / f"{_INCOMING_PREFIX}{secrets.token_hex(8)}"
        with self._open.one(tenant) as opened, disk_full_is_an_error(Path(name)):
            with self._keeping:  # what is kept from now on lessens this room
                opened.room_bytes = self.room_bytes(tenant)
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                try:
                    yield Incoming(self, self._open, opened, kind, name, path, file)
                finally:
                    path.unlink(missing_ok=True)

    def room_bytes(self, tenant: str | None) -> int | None:
        """Return how many bytes a tenant may keep besides those that it does; None without a quota.

        Raises:
            QuotaError: None at all.
        """
        most_bytes = None if tenant is None else self._quota_of(tenant)
        if most_bytes is None:
            return None
        kept_bytes = sum(upload.size_bytes for upload in self.all() if upload.tenant == tenant)
        if kept_bytes >= most_bytes:
            raise uploads_full(kept_bytes, most_bytes)
        return most_bytes - kept_bytes

    def keep(self, upload: Upload, path: Path, opened: OpenUpload) -> Upload:
        """Publish a checked file; one that is there already stays as it is."""
        target = self.folder / upload.id
        with self._keeping:
            is_new = not target.exists()
            if is_new:
                self._require_room(upload)
            kept = self._publish(upload, path, target)
            if is_new:
                self._open.note_kept(opened)
            return kept

    def _require_room(self, upload: Upload) -> None:
        """Check the quota again: other uploads of the tenant may have ended meanwhile."""
        room_bytes = self.room_bytes(upload.tenant)
        if room_bytes is not None and upload.size_bytes > room_bytes:
            raise no_room_for(upload.name, room_bytes)

    def _publish(self, upload: Upload, path: Path, target: Path) -> Upload:
        while not target.exists():
            try:
                with publishing(target) as folder:
                    path.rename(folder / _content_name(upload.kind))
                    write_json(folder / _MANIFEST, asdict(upload))
            except ConflictError:  # the same file from somebody else at the same time
                time.sleep(_OTHERS_TURN_S)
        return self.get(upload.id)

    def all(self) -> list[Upload]:
        """Every upload that can be read, the newest first."""
        folders = [path for path in self.folder.glob("*-*") if not path.name.startswith(".")]
        return sorted(_readable(folders), key=lambda upload: upload.created_s, reverse=True)

    def get(self, upload_id: str) -> Upload:
        return _read(self._existing(upload_id))

    def content(self, upload_id: str, kind: UploadKind) -> Path:
        """Find the file itself; an upload of another kind is rejected."""
        upload = self.get(upload_id)
        if upload.kind is not kind:
            raise InvalidArgumentError(f"upload {upload_id} is a {upload.kind} file; a {kind} file is needed here")
        return self._existing(upload_id) / _content_name(kind)

    def delete(self, upload_id: str) -> None:
        folder = self._existing(upload_id)
        doomed = folder.with_name(f"{_INCOMING_PREFIX}{secrets.token_hex(8)}")
        folder.rename(doomed)
        shutil.rmtree(doomed)

    def named_as_sent(self, upload_ids: Iterable[str]) -> dict[str, str]:
        """The files' paths and the names that they were sent under, for messages; of those that can be read."""
        found = _readable(self.folder / upload_id for upload_id in upload_ids)
        return {str(self.folder / upload.id / _content_name(upload.kind)): upload.name for upload in found}

    def _existing(self, upload_id: str) -> Path:
        folder = self.folder / upload_id
        if not re.fullmatch(r"(corpus|task|adapter)-[0-9a-f]{64}", upload_id) or not folder.is_dir():
            raise NotFoundError(f"upload {shown(upload_id)} does not exist")
        return folder


class Incoming:
    """An upload under way: written in pieces, counted and hashed as it comes."""

    def __init__(
        self,
        uploads: Uploads,
        all_open: OpenUploads,
        opened: OpenUpload,
        kind: UploadKind,
        name: str,
        path: Path,
        file: BinaryIO,
    ) -> None:
        self._uploads = uploads
        self._all_open = all_open
        self._opened = opened
        self._kind = kind
        self._name = name
        self._path = path
        self._file = file
        self._digest = hashlib.sha256()

    def expect(self, size_bytes: int) -> None:
        """Reject a size that is announced before anything is sent; what is sent is counted all the same."""
        self._require_allowed(size_bytes)
        self._all_open.require_room(self._opened, size_bytes, self._name)

    def write(self, chunk: bytes) -> None:
        """Take the next piece, if the tenant's uploads under way have room for it."""
        size_bytes = self._opened.size_bytes + len(chunk)
        self._require_allowed(size_bytes)
        self._all_open.grow(self._opened, size_bytes, self._name)
        self._digest.update(chunk)
        self._file.write(chunk)

    def _require_allowed(self, size_bytes: int) -> None:
        if self._kind is UploadKind.ADAPTER and size_bytes > MAX_ARCHIVE_BYTES:
            raise UploadTooLargeError(
                f"{self._name} is larger than {MAX_ARCHIVE_BYTES >> 20} MiB, the most for an adapter"
            )
        if size_bytes > self._uploads.max_bytes:
            raise UploadTooLargeError(
                f"{self._name} is larger than {self._uploads.max_bytes / (1 << 20):g} MiB, the most that this "
                "manager takes (hplm manager --max-upload-mb)"
            )

    def keep(self, check: Callable[[Path], str]) -> Upload:
        """Keep the file if it passes its check, which sums it up; messages about it name it as the user does."""
        self._file.flush()
        with replacing_path_in_errors(self._path, self._name):
            summary = check(self._path)
        sha256 = self._digest.hexdigest()
        tenant, size_bytes, now = self._opened.tenant, self._opened.size_bytes, time.time()
        named = sha256 if tenant is None else hashlib.sha256(f"{tenant}/{sha256}".encode()).hexdigest()
        upload = Upload(f"{self._kind}-{named}", self._kind, self._name, size_bytes, sha256, summary, now, tenant)
        return self._uploads.keep(upload, self._path, self._opened)


def _is_unfinished(path: Path) -> bool:
    return path.name.startswith(_INCOMING_PREFIX) or path.suffix == _UNPUBLISHED


def _content_name(kind: UploadKind) -> str:
    return f"content.{_SUFFIXES[kind]}"


def _readable(folders: Iterable[Path]) -> Iterator[Upload]:
    for folder in folders:
        try:
            yield _read(folder)
        except (HplmError, OSError) as error:
            LOGGER.warning("an upload is left out: %s", error)


def _read(folder: Path) -> Upload:
    manifest = Fields(read_json(folder / _MANIFEST), str(folder / _MANIFEST))
    return Upload(
        id=manifest.text("id"),
        kind=UploadKind(manifest.text("kind", list(UploadKind))),
        name=manifest.text("name"),
        size_bytes=manifest.whole("size_bytes"),
        sha256=manifest.text("sha256"),
        summary=manifest.text("summary"),
        created_s=manifest.number("created_s"),
        tenant=None if manifest.get("tenant") is None else manifest.text("tenant"),
    )
