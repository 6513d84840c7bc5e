"""Where words begin, by the tokens' ids alone, against what tokenizers of each family say with offsets."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import Model
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.trainers import Trainer

from backends.root.tokenizer import RootTokenizer
from backends.root.word_marks import BEGINS_WORD, CONTINUES_WORD, OF_NO_WORD
from bench.kit.tiny_home import SPECIAL, sample_texts

Parts = tuple[Model, PreTokenizer, Trainer]
SIZE = 90
"""So small that most words are cut."""
LENGTH = 64
"""So short that some texts are cut."""


def word_piece() -> Parts:
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=SPECIAL, show_progress=False)
    return models.WordPiece(unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer(), trainer


def unigram() -> Parts:
    trainer = trainers.UnigramTrainer(vocab_size=SIZE, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False)
    return models.Unigram(), pre_tokenizers.Metaspace(), trainer


def byte_level() -> Parts:
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=SPECIAL, show_progress=False)
    return models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=True), trainer


def tokenizer_of(parts: Parts, path: Path, pad_id: int) -> tuple[RootTokenizer, Tokenizer]:
    model, pre_tokenizer, trainer = parts
    plain = Tokenizer(model)
    plain.normalizer, plain.pre_tokenizer = normalizers.Lowercase(), pre_tokenizer
    plain.train_from_iterator([text.text for text in sample_texts(300, 5)], trainer)
    plain.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    plain.save(str(path))
    plain.enable_truncation(LENGTH)
    return RootTokenizer(path, LENGTH, pad_id), plain


@pytest.mark.parametrize("pad_id", [0, 4])
@pytest.mark.parametrize("parts", [word_piece, unigram, byte_level])
def test_words_begin_where_offsets_say(parts: object, pad_id: int, tmp_path: Path) -> None:
    assert callable(parts)
    tokenizer, plain = tokenizer_of(parts(), tmp_path / "tokenizer.json", pad_id)
    seed = random.randrange(1 << 32)
    texts = [text.text for text in sample_texts(40, seed)]
    rows = tokenizer.encode(texts)
    marks = np.split(tokenizer.word_marks(rows.token_ids), rows.row_offsets[1:-1])
    seen = set[int]()
    for text, found in zip(texts, marks, strict=True):
        encoding, before, expected = plain.encode(text), None, []
        for special, word in zip(encoding.special_tokens_mask, encoding.word_ids, strict=True):
            expected.append(OF_NO_WORD if special else CONTINUES_WORD if word == before else BEGINS_WORD)
            before = word
        assert found.tolist() == expected, f"seed {seed}: {encoding.tokens}"
        seen.update(expected)
    assert seen == {OF_NO_WORD, BEGINS_WORD, CONTINUES_WORD}, f"seed {seed}"


def test_unknown_words_are_none_that_could_go(tiny_bert: Path) -> None:
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", 32)
    marks = tokenizer.word_marks(tokenizer.encode(["cat ☃ cat"]).token_ids)
    assert marks.tolist() == [OF_NO_WORD, BEGINS_WORD, OF_NO_WORD, BEGINS_WORD, OF_NO_WORD]
