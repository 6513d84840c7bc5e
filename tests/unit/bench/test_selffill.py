from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.database import Database
from backends.registry.registry import Registry
from bench.kit.scratch_home import copied_home, copy_registry
from bench.selffill import chosen_texts, served_passes


def test_every_request_by_turns_counts() -> None:
    """One of the self-filled server's three rounds is slow throughout, which no median of a text's rounds shows."""
    taken_ms = np.ones((3, 2, 200))
    taken_ms[1, 0] = 50.0
    mine, theirs, my_medians, their_medians = served_passes(taken_ms)
    assert (len(mine.latencies_ms), len(theirs.latencies_ms)) == (600, 600)
    assert (mine.p99_ms, theirs.p99_ms) == (50.0, 1.0)
    assert (my_medians.p99_ms, their_medians.p99_ms) == (1.0, 1.0)


def test_without_a_file_the_texts_are_those_that_the_demo_kept_out(tiny_home: Home) -> None:
    hplms = Registry.open(tiny_home).hplms()[:2]
    with pytest.raises(NotFoundError, match="make demo"):
        chosen_texts(tiny_home, None, hplms, 4, seed=1)
    for number, entry in enumerate(hplms):
        folder = tiny_home.path / "texts" / entry.id
        folder.mkdir(parents=True)
        (folder / "test.jsonl").write_text("".join(f'{{"text": "{number} {line}"}}\n' for line in range(2)))
    chosen = chosen_texts(tiny_home, None, hplms, 4, seed=1)
    assert sorted(text for _, text in chosen) == ["0 0", "0 1", "1 0", "1 1"]
    assert sorted(text for _, text in chosen_texts(tiny_home, None, hplms, 5, seed=2)) == ["0 0", "0 1", "1 0", "1 1"]
    given = folder / "given.txt"
    given.write_text("one\ntwo\n\none\n")
    assert sorted(text for _, text in chosen_texts(tiny_home, given, hplms, 2, seed=1)) == ["one", "two"]
    with pytest.raises(InvalidArgumentError, match="2 different texts; 3 are needed"):
        chosen_texts(tiny_home, given, hplms, 3, seed=1)


def test_what_was_written_ahead_is_copied(tiny_home: Home, tmp_path: Path) -> None:
    database = Database.connect(tiny_home.registry_url)  # open, so that nothing is folded into the file meanwhile
    registry = Registry.open(tiny_home)
    entry = registry.hplms()[0]
    parts = (entry.id, entry.domain, entry.task, entry.labels, entry.folder, entry.metrics)
    latest = registry.publish_hplm(*parts)
    assert Path(f"{tiny_home.path / 'registry.db'}-wal").stat().st_size > 0
    assert Registry.open(copied_home(tiny_home.path, tmp_path / "copy")).hplm(entry.id) == latest
    (tmp_path / "bare").mkdir()
    copy_registry(tiny_home.path, tmp_path / "bare")
    assert Registry.open(Home(tmp_path / "bare")).hplm(entry.id) == latest
    registry.close()
    database.close()
