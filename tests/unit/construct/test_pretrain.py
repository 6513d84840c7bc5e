"""Further pretraining on texts that give it little."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.home import Home
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore
from builder.construct.domain import masking
from builder.construct.domain.pretrain import Pretrainer
from builder.construct.training.checkpoint import Checkpoint
from builder.settings.domain import Pace, PretrainSettings


def test_batches_that_hide_no_token_teach_nothing_and_break_nothing(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_CHOSEN_SHARE", 0.0)
    root = RootFolder(tiny_home.root("tiny"))
    pretrainer = Pretrainer(root, ["the cow"] * 8, ["the hen"])
    pace = Pace(steps=3, learning_rate=1e-3, weight_decay=0.0)
    head = pretrainer.train_head(pace, Checkpoint(tmp_path / "head", "head"), ignore)
    settings = PretrainSettings(lower=pace, anchor=0.0)
    lower, figures = pretrainer.train_lower(head, root.lower(), settings, Checkpoint(tmp_path / "lower", "low"), ignore)
    for learned, before in zip(lower.parameters(), root.lower().parameters(), strict=True):
        torch.testing.assert_close(learned, before)
    assert (figures["mlm_loss_before"], figures["mlm_loss_after"]) == (None, None)
