"""What early heads learn from: texts as they are, or rewritten where the hPLM was trained on them."""

from __future__ import annotations

import torch

from backends.home import Home
from backends.root.store import RootFolder
from bench.kit.tiny_home import sample_texts
from builder.construct.tasks.calibration import NO_LABEL
from builder.construct.tasks.dataset import CLASSIFICATION, TaskData
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.learned_texts import LearnedTexts


def test_texts_that_were_trained_on_are_rewritten_and_have_no_label(built_home: Home) -> None:
    root = RootFolder(built_home.root("tiny"))
    examples = [LabelledText(each.text, each.topic) for each in sample_texts(60, 3)]
    learned = LearnedTexts.of(examples, TrainedTexts.of(examples[::2]), root)
    assert learned.is_rewritten[::2].all() and not learned.is_rewritten[1::2].any()
    assert list(learned.examples[1::2]) == examples[1::2]
    pairs = list(zip(learned.examples[::2], examples[::2], strict=True))
    assert all(isinstance(new, LabelledText) and new.label == old.label for new, old in pairs)
    assert sum(new != old for new, old in pairs) > 20
    again = LearnedTexts.of(examples, TrainedTexts.of(examples[::2]), root)
    assert list(again.examples) == list(learned.examples)

    labels = tuple(sorted({each.label for each in examples if isinstance(each.label, str)}))
    objective = objective_of(TaskData(CLASSIFICATION, labels, examples, examples))
    known = learned.labels(objective.targets(learned.examples, [None] * 60), objective.num_outputs)
    assert (known[::2] == NO_LABEL).all() and (known[1::2] >= 0).all()
    assert torch.equal(known[1::2], torch.tensor([labels.index(str(each.label)) for each in examples[1::2]]))


def test_texts_that_are_new_to_the_hplm_stay_as_they_are(built_home: Home) -> None:
    examples = [LabelledText(each.text, each.topic) for each in sample_texts(20, 3)]
    learned = LearnedTexts.of(examples, TrainedTexts.of(examples[:0]), RootFolder(built_home.root("tiny")))
    assert learned.examples is examples and not learned.is_rewritten.any()


def test_sentences_keep_their_number_of_words(built_home: Home) -> None:
    words = [tuple(each.text.split()) for each in sample_texts(20, 3)]
    examples = [TaggedSentence(each, ("O",) * len(each)) for each in words]
    learned = LearnedTexts.of(examples, TrainedTexts.of(examples), RootFolder(built_home.root("tiny")))
    lengths = [len(each.words) for each in learned.examples if isinstance(each, TaggedSentence)]
    assert lengths == list(map(len, words)) and learned.is_rewritten.all()
