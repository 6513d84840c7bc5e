"""Uploads of all kinds through the manager's checks: corpora, task files, zipped adapters."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from backends.home import Home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target
from bench.kit.fuzz.targets.task_files import bad_task_file
from builder.manager.archives import unpack
from builder.manager.upload_checks import CHECKS
from builder.requests.base import UploadKind

_NAMES = ("adapter_config.json", "adapter_model.safetensors", "folder/inner.txt")
_LINKS = (0o120777, 0o060644, 0o040755, 0o100644, 0)


class UploadedFiles(Target):
    """Files of any content; no archive writes outside its folder."""

    name = "uploads"
    cases = 40_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._file, self._inside = scratch / "upload", scratch / "around" / "unpacked"
        self._good = _archive([(name, b"{}" * 40) for name in _NAMES])

    def attempt(self, draw: Draw) -> None:
        kind = draw.choice((UploadKind.ADAPTER, UploadKind.TASK, UploadKind.CORPUS))
        if kind is not UploadKind.ADAPTER:
            self._file.write_bytes(bad_task_file(draw))
            CHECKS[kind](self._file)
            return
        self._file.write_bytes(self._bad_archive(draw))
        try:
            CHECKS[kind](self._file)
            self._inside.mkdir(parents=True)
            unpack(self._file, self._inside)
            self._require_inside()
        finally:
            shutil.rmtree(self._inside.parent, ignore_errors=True)

    def _require_inside(self) -> None:
        outside = [path for path in self._inside.parent.iterdir() if path != self._inside]
        if outside or any(path.is_symlink() for path in self._inside.rglob("*")):
            raise HarmedError("an archive was unpacked beside its folder, or as a link")

    def _bad_archive(self, draw: Draw) -> bytes:
        if draw.happens(0.5):
            return draw.damaged(self._good)
        entries = [(_name(draw), draw.randbytes(draw.randrange(60))) for _ in range(draw.choice((0, 1, 2, 3)))]
        content = _archive(entries, draw.choice(_LINKS), draw.choice((ZIP_STORED, ZIP_DEFLATED)))
        return content if draw.happens(0.7) else draw.damaged(content)


def _name(draw: Draw) -> str:
    name = draw.text((*_NAMES, "../out.txt", "/etc/x", "a/../../b", "adapter_config.json/below"))
    return name.encode("utf-8", "replace").decode()[:3_000] or "x"


def _archive(entries: list[tuple[str, bytes]], mode: int = 0o100644, method: int = ZIP_STORED) -> bytes:
    memory = io.BytesIO()
    with ZipFile(memory, "w", method) as archive:
        for name, content in entries:
            entry = ZipInfo(name)
            entry.external_attr, entry.compress_type = mode << 16, method
            archive.writestr(entry, content)
    return memory.getvalue()
