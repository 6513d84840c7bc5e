"""Texts for `hplm select`, and a selection as tests make them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.engine.stack import StackSettings
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, sample_texts
from builder.levels.material import LabelledFiles, UnlabelledFile
from builder.levels.selecting import Selecting, Selection, select_ladder
from builder.levels.target import Target

STACK = StackSettings(dtype="fp32")
EASY = Target.of(max_drop=20)


def written(path: Path, question: str, count: int, seed: int) -> Path:
    rows = [{"text": text.text, "label": getattr(text, question)} for text in sample_texts(count, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plain(path: Path, count: int, seed: int) -> UnlabelledFile:
    path.write_text("".join(text.text + "\n" for text in sample_texts(count, seed)))
    return UnlabelledFile(path)


def select(home: Home, train: Path, held_out: Path, target: Target = EASY, **changes: Any) -> Selection:
    selecting = replace(Selecting("acme/topic", LabelledFiles(train, held_out), target), **changes)
    return select_ladder(home, Registry.open(home), selecting, STACK, ignore)
