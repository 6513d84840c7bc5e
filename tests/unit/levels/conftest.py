"""Texts that selections learn from, and others that certify."""

from __future__ import annotations

from pathlib import Path

import pytest

from selection_cases import written


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return written(tmp_path / "train.jsonl", "topic", 160, seed=100)


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    return written(tmp_path / "held_out.jsonl", "topic", 400, seed=901)
