"""A copy of a good folder that each case damages anew: bytes, JSON with a checksum that fits, files that are gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from backends.storage import json_checksum
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_values import any_value, bad_json, bad_value, encoded
from bench.kit.fuzz.tensor_files import bad_tensors

_CHECKSUM = "checksum"


class BadFolder:
    """A folder that is whole between the cases.

    A builder of another release writes other manifests with right checksums, and so does an attacker: most damage of a
    manifest is followed by its new checksum, and of a file that a manifest describes by its new size and checksum.
    """

    def __init__(self, good: Path, copy: Path) -> None:
        if good != copy:
            shutil.copytree(good, copy, symlinks=True)
        self.path = copy
        self._files = {path: path.read_bytes() for path in sorted(copy.rglob("*")) if path.is_file()}

    @contextmanager
    def damaged(self, draw: Draw) -> Iterator[Path]:
        """Damage a file or two for as long as the block lasts."""
        changed: dict[Path, bytes] = {}
        try:
            for path in draw.sample(list(self._files), k=min(len(self._files), draw.choice((1, 1, 1, 2)))):
                self._damage(draw, path, changed)
            for path, content in changed.items():
                path.unlink(missing_ok=True)  # a reader may have mapped the old file
                path.write_bytes(content)
            if draw.happens(0.04):
                self._replace_one(draw)
            yield self.path
        finally:
            self._mend()

    def _damage(self, draw: Draw, path: Path, changed: dict[Path, bytes]) -> None:
        good = self._files[path]
        if path.suffix == ".json" and draw.happens(0.8):
            changed[path] = _bad_json_file(draw, good)
            return
        bad = bad_tensors(draw, good) if path.suffix == ".safetensors" else draw.damaged(good)
        changed[path] = bad
        if draw.happens(0.85):
            for other, content in self._files.items():
                if other.suffix == ".json" and other != path and other not in changed:
                    described = _described_anew(content, good, bad)
                    if described != content:
                        changed[other] = described

    def _replace_one(self, draw: Draw) -> None:
        """Put nothing, a folder, or a link to itself in a file's place."""
        path = draw.choice(list(self._files))
        path.unlink(missing_ok=True)
        match draw.randrange(4):
            case 0:
                path.mkdir()
            case 1:
                path.symlink_to(path.name)
            case 2:
                path.write_bytes(b"")

    def _mend(self) -> None:
        for path, content in self._files.items():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            if path.is_symlink() or not path.exists() or path.read_bytes() != content:
                path.unlink(missing_ok=True)
                path.write_bytes(content)


def _bad_json_file(draw: Draw, good: bytes) -> bytes:
    content = json.loads(good)
    if not isinstance(content, dict) or _CHECKSUM not in content:
        return encoded(draw, bad_json(draw, content))
    if draw.happens(0.1):
        return encoded(draw, bad_json(draw, content))
    del content[_CHECKSUM]
    bad = bad_value(draw, content)
    if not isinstance(bad, dict):
        return json.dumps(bad).encode()
    if draw.happens(0.03):
        bad[draw.text()] = any_value(draw)
    return _with_checksum(bad)


def _with_checksum(content: dict[str, Any]) -> bytes:
    try:
        return json.dumps({**content, _CHECKSUM: json_checksum(json.loads(json.dumps(content)))}).encode()
    except (RecursionError, ValueError):  # too deep, or too long a number, to be written at all
        return b"{}"


def _described_anew(manifest: bytes, old: bytes, new: bytes) -> bytes:
    """A manifest that gives the new size and checksum of a file where it gave the old ones."""
    content = json.loads(manifest)
    if not isinstance(content, dict) or _CHECKSUM not in content:
        return manifest
    del content[_CHECKSUM]
    replaced = {xxhash.xxh3_128_hexdigest(old): xxhash.xxh3_128_hexdigest(new)}
    described = _replaced(content, replaced, len(old), len(new))
    return manifest if described == content else _with_checksum(described)


def _replaced(value: Any, checksums: Mapping[str, str], old_size: int, new_size: int) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(each, checksums, old_size, new_size) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, checksums, old_size, new_size) for each in value]
    if isinstance(value, str):
        return checksums.get(value, value)
    return new_size if value == old_size and type(value) is int and old_size > 100 else value
