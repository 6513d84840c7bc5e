"""Uploads on disk: kept by their content, refused when bad, gone when half-done."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backends.errors import HplmError, InvalidArgumentError, NotFoundError, StorageFullError
from backends.home import Home
from bench.kit.tiny_home import sample_texts
from builder.manager import archives
from builder.manager.archives import unpack
from builder.manager.upload_checks import CHECKS, check_task
from builder.manager.uploads import Incoming, Upload, Uploads, UploadTooLargeError
from builder.requests.base import UploadKind


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(Home(tmp_path), max_bytes=100_000)


def receive(uploads: Uploads, kind: UploadKind, content: bytes, name: str = "mine") -> Upload:
    with uploads.receiving(kind, name) as incoming:
        for start in range(0, len(content), 1000):
            incoming.write(content[start : start + 1000])
        return incoming.keep(CHECKS[kind])


def corpus(count: int, seed: int) -> bytes:
    return "".join(f"{text.text}\n" for text in sample_texts(count, seed)).encode()


def archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return buffer.getvalue()


def files(uploads: Uploads) -> list[Path]:
    return sorted(path for path in uploads.folder.rglob("*"))


def test_a_file_is_kept_by_its_content(uploads: Uploads) -> None:
    content = corpus(70, seed=random.randrange(10**6))
    upload = receive(uploads, UploadKind.CORPUS, content)
    assert upload.sha256 == hashlib.sha256(content).hexdigest()
    assert (upload.size_bytes, upload.summary, upload.name) == (len(content), "70 texts", "mine")
    assert uploads.content(upload.id, UploadKind.CORPUS).read_bytes() == content
    assert receive(uploads, UploadKind.CORPUS, content, "the same again") == upload
    other = receive(uploads, UploadKind.CORPUS, content + b"more\n")
    assert {found.id for found in uploads.all()} == {upload.id, other.id}
    uploads.delete(upload.id)
    assert [found.id for found in uploads.all()] == [other.id]


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        (UploadKind.CORPUS, b"good\nb\xe4d\n", "mine:2: not UTF-8 at byte 1"),
        (UploadKind.CORPUS, b"good\n\x00\x01binary\n", "mine:2: holds a NUL byte"),
        (UploadKind.CORPUS, b"\n \n", "mine holds no text"),
        (UploadKind.TASK, b"", "mine holds no examples"),
        (UploadKind.TASK, b'{"text": "a", "label": "b"}\n{"text": "c"}\n', "mine:2: 'label' is missing"),
        (UploadKind.TASK, b"Ann\tB-PER\nsaw\tO\nBob\tI-PER\n", "mine:3: I-PER after O breaks BIO"),
        (UploadKind.TASK, b'{"text": "a", "label": 1.5}\n{"text": "c", "label": "x"}\n', "mine:2: 'label' must be"),
        (UploadKind.ADAPTER, b"PK\x03\x04 nonsense", "mine is not a readable zip archive"),
        (UploadKind.ADAPTER, archive({}), "mine holds no files"),
        (UploadKind.ADAPTER, archive({"../outside": b"x"}), "mine: '../outside' lies outside"),
        (UploadKind.ADAPTER, archive({"/etc/passwd": b"x"}), "mine: '/etc/passwd' lies outside"),
        (UploadKind.ADAPTER, archive({f"{n}": b"" for n in range(1001)}), "mine holds too many entries"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_leaves_nothing(
    uploads: Uploads, kind: UploadKind, content: bytes, reason: str
) -> None:
    with pytest.raises(HplmError) as refused:
        receive(uploads, kind, content)
    assert str(refused.value).startswith(reason)
    assert files(uploads) == []


@pytest.mark.parametrize("content", [b'{"text": "a", "label": 2}\n', b'{"text": "a", "label": "x"}\n', b"Ann\tB-PER\n"])
def test_every_training_format_is_taken(uploads: Uploads, content: bytes) -> None:
    assert receive(uploads, UploadKind.TASK, content).summary.startswith("1 ")


def test_more_bytes_than_allowed_are_refused_wherever_they_show(uploads: Uploads) -> None:
    with uploads.receiving(UploadKind.CORPUS, "big") as incoming:
        incoming.expect(100_000)
        with pytest.raises(UploadTooLargeError, match="big is larger than"):
            incoming.expect(100_001)
        incoming.write(b"x" * 100_000)
        with pytest.raises(UploadTooLargeError, match="big is larger than"):
            incoming.write(b"x")
    assert files(uploads) == []


def test_what_a_killed_manager_has_left_is_swept(uploads: Uploads) -> None:
    kept = receive(uploads, UploadKind.CORPUS, corpus(5, 1))
    (uploads.folder / ".incoming-0123").write_bytes(b"half")
    (uploads.folder / ".incoming-4567").mkdir()
    before = set(files(uploads))
    uploads.sweep()
    assert {path.name for path in before - set(files(uploads))} == {".incoming-0123", ".incoming-4567"}
    assert uploads.get(kept.id) == kept


def test_one_bad_manifest_hides_no_other_upload(uploads: Uploads) -> None:
    kept, bad, gone = (receive(uploads, UploadKind.CORPUS, corpus(5, seed), f"{seed}.txt") for seed in (1, 2, 3))
    (uploads.folder / bad.id / "upload.json").write_text("{")
    uploads.delete(gone.id)
    assert uploads.all() == [kept]
    path = str(uploads.content(kept.id, UploadKind.CORPUS))
    assert uploads.named_as_sent([bad.id, gone.id, kept.id]) == {path: "1.txt"}


def test_a_full_disk_is_said_and_leaves_nothing(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Incoming, __: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Incoming, "write", full)
    with pytest.raises(StorageFullError, match="no space left on the disk while writing mine"):
        receive(uploads, UploadKind.CORPUS, b"text\n")
    assert files(uploads) == []


@pytest.mark.parametrize("wrong", ["corpus-12", "../registry.db", f"corpus-{'0' * 64}", "", f"other-{'0' * 64}"])
def test_an_unknown_upload_is_not_found(uploads: Uploads, wrong: str) -> None:
    with pytest.raises(NotFoundError):
        uploads.get(wrong)
    with pytest.raises(NotFoundError):
        uploads.delete(wrong)


def test_the_same_file_twice_at_once_is_one_upload(uploads: Uploads) -> None:
    content = corpus(70, seed=3)
    with ThreadPoolExecutor(8) as senders:
        received = list(senders.map(lambda number: receive(uploads, UploadKind.CORPUS, content, str(number)), range(8)))
    assert len({upload.id for upload in received}) == 1
    assert [upload.id for upload in uploads.all()] == [received[0].id]


def test_an_upload_is_used_as_what_it_is(uploads: Uploads) -> None:
    upload = receive(uploads, UploadKind.CORPUS, b"a text\n")
    with pytest.raises(InvalidArgumentError, match="is a corpus file; a task file is needed"):
        uploads.content(upload.id, UploadKind.TASK)


def test_an_adapter_is_limited_whatever_else_is_taken(tmp_path: Path) -> None:
    uploads = Uploads(Home(tmp_path / "home"), max_bytes=1 << 40)
    with uploads.receiving(UploadKind.ADAPTER, "adapter.zip") as incoming:
        incoming.expect(archives.MAX_ARCHIVE_BYTES)
        with pytest.raises(UploadTooLargeError, match=r"adapter\.zip is larger than 64 MiB, the most for an adapter"):
            incoming.expect(archives.MAX_ARCHIVE_BYTES + 1)


@pytest.mark.parametrize(
    "line",
    ['{"text": "%s", "label": "a"}', '{"text": "%s", "label": 0.5}', "%s\tO\n"],
    ids=["jsonl", "values", "conll"],
)
def test_a_check_keeps_one_example_at_a_time(tmp_path: Path, line: str) -> None:
    path = tmp_path / "task"
    path.write_text("".join(f"{line % ('x' * 500)}\n" for _ in range(8000)))
    check_task(path)  # what is imported and compiled once is no part of it
    tracemalloc.start()
    try:
        assert check_task(path).startswith("8000 ")
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 4
    finally:
        tracemalloc.stop()


def test_an_archive_unpacks_to_the_folder_inside_it(tmp_path: Path) -> None:
    content = {"config.json": json.dumps({"r": 8}).encode(), "sub/weights": random.randbytes(5000)}
    for number, prefix in enumerate(("", "adapter/")):
        path = tmp_path / f"{number}.zip"
        path.write_bytes(archive({prefix + name: data for name, data in content.items()}))
        folder = unpack(path, tmp_path / f"unpacked{number}")
        assert {name: (folder / name).read_bytes() for name in content} == content


def test_a_damaged_or_treacherous_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.zip"
    whole = archive({"weights": random.randbytes(20_000)})
    path.write_bytes(whole[:5000] + bytes(200) + whole[5200:])
    with pytest.raises(InvalidArgumentError, match=r"bad\.zip"):
        unpack(path, tmp_path / "out")
    with zipfile.ZipFile(path, "w") as file:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc")
        file.writestr("link/passwd", "x")
    with pytest.raises(InvalidArgumentError, match="is a link or a device"):
        unpack(path, tmp_path / "out")
    for entries, complaint in (
        ({"first": b"", "a": b"x", "a/b": b"y"}, "'a/b' lies below what is a file itself"),
        ({"first": b"", "a": b"x", "./a": b"y"}, "holds 'a' twice"),
        ({"/".join("n" * 60): b"", "n" * 256: b"x"}, "is longer than 255 bytes"),
        ({str(number): b"" for number in range(1001)}, "holds too many entries; an adapter has at most 1000"),
    ):
        path.write_bytes(archive(entries))
        with pytest.raises(InvalidArgumentError, match=complaint):
            unpack(path, tmp_path / "out")
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as file:
            file.writestr("zeros", bytes(1 << 20))
        with pytest.raises(InvalidArgumentError, match="'zeros' is neither stored nor deflated"):
            unpack(path, tmp_path / "out")
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 20)
    path.write_bytes(archive({"zeros": bytes((1 << 20) + 1)}))
    with pytest.raises(InvalidArgumentError, match="unpacks to more than 1 MiB"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").rglob("*"))
