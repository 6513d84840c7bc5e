"""Rewritten texts: near words of the same task in place of some, everything else as it was."""

import re
from pathlib import Path

import pytest
import torch

from backends.errors import InvalidArgumentError
from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import MAX_TOKENS, sample_texts
from builder.construct.hplm.rewriting import NearWords, Rewriting
from builder.construct.tasks.examples import LabelledText, TaggedSentence

HIDDEN = 6


@pytest.fixture
def tokenizer(tiny_bert: Path) -> RootTokenizer:
    return RootTokenizer(tiny_bert / "tokenizer.json", MAX_TOKENS)


@pytest.fixture
def embeddings() -> torch.Tensor:
    return torch.randn(4000, HIDDEN, generator=torch.Generator().manual_seed(3))


def texts(count: int = 40) -> list[LabelledText]:
    return [LabelledText(text.text, text.mood) for text in sample_texts(count, 5)]


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{3,}", text)


def test_near_words_are_those_of_the_slow_way(tokenizer: RootTokenizer, embeddings: torch.Tensor) -> None:
    examples = texts()
    near = NearWords.among(examples, tokenizer, embeddings)
    words = sorted({word for example in examples for word in words_of(example.text)})
    special = set(tokenizer.special_ids.values())

    def direction(word: str) -> torch.Tensor:
        pieces = [piece for piece in tokenizer.encode([word]).token_ids.tolist() if piece not in special]
        mean = torch.stack([embeddings[piece] for piece in pieces]).mean(dim=0)
        return mean / mean.norm()

    directions = {word: direction(word) for word in words}
    for word in words:
        others = near.of(word)
        if not others:  # spelt otherwise it is another's
            assert any(torch.equal(directions[word], directions[other]) for other in words if other != word)
            continue
        likeness = {other: float(directions[word] @ directions[other]) for other in words if other != word}
        bound = min(likeness[other] for other in others)
        left_out = [other for other in words if other != word and other not in others and near.of(other)]
        assert word not in others
        assert all(likeness[other] <= bound + 1e-5 for other in left_out)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_only_words_change_and_about_as_many_as_asked(
    tokenizer: RootTokenizer, embeddings: torch.Tensor, share: float
) -> None:
    examples = texts(200)
    rewritten = Rewriting(variants=2, share=share).apply(examples, tokenizer, embeddings)
    assert len(rewritten) == 400
    changed = total = 0
    for before, after in zip([*examples, *examples], rewritten, strict=True):
        assert isinstance(after, LabelledText)
        assert after.label == before.label
        assert re.sub(r"[^\W\d_]{3,}", "", after.text) == re.sub(r"[^\W\d_]{3,}", "", before.text)
        pairs = list(zip(words_of(before.text), words_of(after.text), strict=True))
        changed += sum(old != new for old, new in pairs)
        total += len(pairs)
    assert changed / total == pytest.approx(share, abs=0.05)
    assert rewritten[:200] != rewritten[200:]
    assert rewritten == Rewriting(variants=2, share=share).apply(examples, tokenizer, embeddings)


def test_pairs_and_tagged_words(tokenizer: RootTokenizer, embeddings: torch.Tensor) -> None:
    first, second, *_ = texts()
    pair = LabelledText(first.text, 0.5, second.text)
    tagged = TaggedSentence(tuple(first.text.split()), ("O",) * len(first.text.split()))
    both = Rewriting(variants=1, share=1.0).apply([pair, tagged], tokenizer, embeddings)
    assert isinstance(both[0], LabelledText) and isinstance(both[1], TaggedSentence)
    assert both[0].text != pair.text and both[0].text_pair != pair.text_pair and both[0].label == 0.5
    assert len(both[1].words) == len(tagged.words) and both[1].tags == tagged.tags and both[1].words != tagged.words


def test_a_word_of_both_halves_becomes_the_same_in_both(tokenizer: RootTokenizer, embeddings: torch.Tensor) -> None:
    examples = [LabelledText(text.text, 1.0, f"{text.text} indeed, {text.text}") for text in texts(60)]
    rewritten = Rewriting(variants=1, share=0.5).apply(examples, tokenizer, embeddings)
    changed = 0
    for before, after in zip(examples, rewritten, strict=True):
        assert isinstance(after, LabelledText) and after.text_pair is not None
        changed += after.text != before.text
        assert after.text_pair.startswith(after.text) and after.text_pair.endswith(after.text)
    assert changed > 50
    assert len({after.text for after in rewritten}) > 50


def test_texts_without_words_stay_as_they_are(tokenizer: RootTokenizer, embeddings: torch.Tensor) -> None:
    examples = [LabelledText("1 + 2", "sum"), LabelledText("?!", "none"), LabelledText("alone", "word")]
    assert Rewriting(variants=1, share=1.0).apply(examples, tokenizer, embeddings) == examples
    assert Rewriting(variants=0).apply(examples, tokenizer, embeddings) == []


@pytest.mark.parametrize(
    "bad", [{"variants": -1}, {"share": 0.0}, {"share": 1.5}, {"share": float("nan")}, {"seed": -1}]
)
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        Rewriting(**bad)  # type: ignore[arg-type]
