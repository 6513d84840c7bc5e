"""The texts that a version was trained on: those of all versions before it, if they are known."""

from __future__ import annotations

from pathlib import Path

from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.trained_texts import UNKNOWN, MadeWith, TrainedTexts

FIRST, SECOND = ([LabelledText(text, "a") for text in texts] for texts in (["one", "two"], ["two", "three"]))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    TrainedTexts.of(FIRST).joined(TrainedTexts.of(SECOND)).write(tmp_path)
    found = TrainedTexts.read(tmp_path)
    assert found.are_all and found.num_among([*FIRST, *SECOND, LabelledText("four", "a")]) == 4


def test_texts_of_an_unknown_beginning_stay_unknown(tmp_path: Path) -> None:
    imported = TrainedTexts.read(tmp_path)
    assert not imported.are_all and imported.hashes.size == 0
    imported.joined(TrainedTexts.of(FIRST)).write(tmp_path)
    updated = TrainedTexts.read(tmp_path)
    assert not updated.are_all and updated.num_among(FIRST) == 2
    assert not TrainedTexts.of(SECOND).joined(updated).are_all


def test_dev_texts_of_an_unknown_beginning_stay_unknown(tmp_path: Path) -> None:
    made_with = MadeWith(TrainedTexts.of(FIRST), TrainedTexts.of(SECOND))
    for name, written, is_known in (("own", made_with, True), ("imported", made_with.joined(UNKNOWN), False)):
        (folder := tmp_path / name).mkdir()
        written.write(folder)
        found = MadeWith.read(folder)
        assert (found.trained.are_all, found.chose.are_all) == (is_known, is_known)
        assert (found.trained.num_among(FIRST), found.chose.num_among(SECOND)) == (2, 2)
    assert not MadeWith.read(tmp_path).chose.are_all
