"""Where words begin in a row of tokens, told by the tokens' ids alone: offsets, which take long, are not needed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

WordMarks = npt.NDArray[np.uint8]
"""What each token is to the words of its text: one of the three below."""
OF_NO_WORD, BEGINS_WORD, CONTINUES_WORD = range(3)
_WORD_BEGINNINGS = ("\u2581", "\u0120")
"""Letters that stand for the blank in front of a word, in SentencePiece and in BPE over bytes."""


def marks_of_vocabulary(tokenizer: Tokenizer) -> WordMarks:
    """Return what each token of a vocabulary is, by its id; special ones, as that for unknown words, are of no word."""
    ids: Mapping[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    marks = np.full(max(ids.values(), default=0) + 1, BEGINS_WORD, np.uint8)
    model = tokenizer.model
    if isinstance(model, WordPiece):
        prefix = model.continuing_subword_prefix
        continues = [number for token, number in ids.items() if prefix and token.startswith(prefix)]
    elif any(token.startswith(_WORD_BEGINNINGS) for token in ids):
        continues = [number for token, number in ids.items() if not token.startswith(_WORD_BEGINNINGS)]
    else:
        continues = []
    marks[continues] = CONTINUES_WORD
    marks[[number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]] = OF_NO_WORD
    return marks
