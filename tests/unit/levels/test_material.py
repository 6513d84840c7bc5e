"""Texts without labels: which are drawn from a file, and which are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.registry.entries import DomainEntry, HplmEntry
from bench.kit.tiny_home import sample_texts
from builder.construct.tasks.examples import Example, LabelledText
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels import material
from builder.levels.material import UnlabelledFile, material_of
from builder.levels.target import Target

LIVE = HplmEntry(
    1, "acme/topic", 1, "classification", ("animals", "tools"), DomainEntry("tiny", "farm", 1, ()), "folder"
)


def texts_of(examples: list[Example]) -> set[str]:
    return {each.text for each in examples if isinstance(each, LabelledText)}


def test_texts_that_were_trained_on_take_no_room_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 of 700 texts are drawn, half of which are known: all that are drawn are new."""
    monkeypatch.setattr(material, "_MOST_UNLABELLED", 300)
    texts = list(dict.fromkeys(text.text for text in sample_texts(2_000, seed=21)))[:700]
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in [*texts, *texts[:50]]))
    known = set(texts[::2])
    trained_on = TrainedTexts.of([LabelledText(text, "animals") for text in known])
    found = material_of(UnlabelledFile(path), LIVE, trained_on, Target.of(agreement=0.9))
    drawn = texts_of([*found.train, *found.held_out])
    assert (len(found.train), len(found.held_out), len(drawn)) == (150, 150, 300)
    assert not drawn & known
    assert found.num_dropped == len(known)
