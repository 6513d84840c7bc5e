"""The texts that the quality bench makes a root of besides corpora."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.tasks.data import write_everyday


def write_split(folder: Path, split: str, rows: list[tuple[str, ...]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    named = [dict(zip(("text", "text_pair"), row, strict=False)) | {"label": str(i % 2)} for i, row in enumerate(rows)]
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named), encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, halves in (("mrpc", 2), ("sst2", 1)):
        for split in ("train", "dev", "test"):
            rows = [tuple(f"{name} {split} {row} {half}" for half in range(halves)) for row in range(20)]
            write_split(tmp_path / "tasks" / name, split, rows)
    leaked = [("mrpc test 3 0", "mrpc train 3 1"), ("mrpc train 4 0", "SST2 dev  2 0"), ("mrpc train 5 0", "one more")]
    write_split(tmp_path / "tasks" / "mrpc", "train", leaked)
    return tmp_path


def test_everyday_passages_are_of_all_train_texts_and_of_none_that_is_measured_on(data: Path, tmp_path: Path) -> None:
    path = write_everyday(data, tmp_path)
    assert path is not None
    text = path.read_text(encoding="utf-8")
    assert " test " not in text and " dev " not in text
    wanted = ["mrpc train 3 1", "mrpc train 4 0", "mrpc train 5 0", "one more"]
    wanted += [f"sst2 train {row} 0" for row in range(20)]
    assert [text.count(one) for one in wanted] == [6] * len(wanted)
    lines = text.splitlines()
    assert max(map(len, lines)) > 2 * min(map(len, lines))  # passages of several lengths
    assert write_everyday(data, tmp_path) == path and path.read_text(encoding="utf-8") == text
    write_everyday(data, tmp_path, seed=6)
    assert path.read_text(encoding="utf-8") != text


def test_a_folder_without_everyday_tasks(data: Path, tmp_path: Path) -> None:
    (data / "tasks").rename(data / "others")
    assert write_everyday(data, tmp_path) is None
