"""Words of natural text, as each family's tokenizer leads to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from backends.root.words import RowWords
from bench.kit.tiny_home import SPECIAL
from family_models import ROBERTA_SPECIAL, byte_level_tokenizer

TEXT = 'We met in London. He (Bob) said:  "Levi\'s, New-York" café 日本。 (London) end!'
WORDS = ["We", "met", "in", "London", ".", "He", "(", "Bob", ")", "said", ":", '"', "Levi", "'", "s", ",", "New", "-"]
WORDS += ["York", '"', "café", "日本", "。", "(", "London", ")", "end", "!"]
CORPUS = [TEXT, "met in London Bob said Levi New York café 日本 end"]


def bert_like() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def metaspace(model: models.Model, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer = Tokenizer(model)
    parts = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    return tokenizer


def unigrams() -> Tokenizer:
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=ROBERTA_SPECIAL, unk_token="<unk>")
    return metaspace(models.Unigram(), trainer)


def pieces_with_punctuation() -> Tokenizer:
    """A vocabulary so large that "▁London." is one piece."""
    return metaspace(models.BPE(), trainers.BpeTrainer(vocab_size=2000, special_tokens=ROBERTA_SPECIAL))


def words_of(tokenizer: Tokenizer, text: str) -> tuple[RowWords, list[str]]:
    words = RowWords.of(tokenizer.encode(text), text)
    return words, [text[start:end] for start, end in zip(words.starts, words.ends, strict=True)]


@pytest.mark.parametrize("build", [bert_like, byte_level_tokenizer, unigrams])
def test_words_end_at_punctuation(build: Callable[[], Tokenizer]) -> None:
    tokenizer = build()
    words, texts = words_of(tokenizer, TEXT)
    assert texts == WORDS
    encoding = tokenizer.encode(TEXT)
    for first, start in zip(words.first_tokens, words.starts, strict=True):
        token_start, token_end = encoding.offsets[first]
        assert start in range(token_start, token_end + 1)  # or the blank before the word
    assert len(set(words.first_tokens)) == len(words)


def test_punctuation_inside_a_piece_is_no_part_of_the_word() -> None:
    tokenizer = pieces_with_punctuation()
    assert "▁London." in tokenizer.encode("in London.").tokens
    _, texts = words_of(tokenizer, "met in London. (London) end!")
    assert texts == ["met", "in", "London", "London", "end"]


@pytest.mark.parametrize("text", ["", "   ", "...", " ( "])
@pytest.mark.parametrize("build", [bert_like, byte_level_tokenizer, unigrams])
def test_texts_without_letters(build: Callable[[], Tokenizer], text: str) -> None:
    _, texts = words_of(build(), text)
    assert "".join(texts) == text.strip()
