"""The uploads under way: how many there are, and how many bytes they have brought."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from backends.errors import UnavailableError
from builder.manager.quotas import no_room_for, uploads_open

MOST_OPEN = 64
MOST_OPEN_OF_TENANT = 8


@dataclass(eq=False)
class OpenUpload:
    """One of them. `room_bytes` is what its tenant may keep besides what it keeps already; None without a quota."""

    tenant: str | None
    room_bytes: int | None = None
    size_bytes: int = 0


class OpenUploads:
    """Uploads of a tenant share its room: what one has brought is lacking to the others, also before it is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[OpenUpload] = []

    @contextmanager
    def one(self, tenant: str | None) -> Iterator[OpenUpload]:
        """An upload more, until it ends.

        Raises:
            QuotaError: The tenant has as many as it may; UnavailableError: There are as many as there may be.
        """
        opened = OpenUpload(tenant)
        with self._lock:
            self._require_place(tenant)
            self._open.append(opened)
        try:
            yield opened
        finally:
            with self._lock:
                self._open.remove(opened)

    def require_room(self, opened: OpenUpload, size_bytes: int, name: str) -> None:
        """Check that an upload may become so large beside the tenant's others.

        Raises:
            QuotaError: They would exceed the quota together.
        """
        with self._lock:
            self._require_room(opened, size_bytes, name)

    def grow(self, opened: OpenUpload, size_bytes: int, name: str) -> None:
        """Note how large an upload is now; raises as `require_room` does."""
        with self._lock:
            self._require_room(opened, size_bytes, name)
            opened.size_bytes = size_bytes

    def note_kept(self, kept: OpenUpload) -> None:
        """An upload takes a part of the tenant's room for good."""
        with self._lock:
            for other in self._others(kept):
                if other.room_bytes is not None:
                    other.room_bytes -= kept.size_bytes
            kept.size_bytes = 0

    def _require_place(self, tenant: str | None) -> None:
        if tenant is not None and sum(one.tenant == tenant for one in self._open) >= MOST_OPEN_OF_TENANT:
            raise uploads_open(MOST_OPEN_OF_TENANT)
        if len(self._open) >= MOST_OPEN:
            raise UnavailableError(f"{MOST_OPEN} uploads are under way, as many as may be; send this one again later")

    def _require_room(self, opened: OpenUpload, size_bytes: int, name: str) -> None:
        if opened.room_bytes is not None:
            room_bytes = max(0, opened.room_bytes - sum(other.size_bytes for other in self._others(opened)))
            if size_bytes > room_bytes:
                raise no_room_for(name, room_bytes)

    def _others(self, opened: OpenUpload) -> list[OpenUpload]:
        return [one for one in self._open if one is not opened and one.tenant == opened.tenant]
