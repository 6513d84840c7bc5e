"""Names and texts of a request, checked and decoded."""

from __future__ import annotations

from backends.errors import InvalidArgumentError
from backends.registry.entries import HplmEntry
from backends.root.tokenizer import Text
from backends.wire import PAIR_SEPARATOR

_MARK_OF_CUT = b"\xff"
"""First byte of a value that was shorter than its length says, once the batching plugin has cut it."""


def num_words(text: bytes, most: int) -> int:
    """Count words up to `most`, without reading the rest of a long text."""
    return min(len(text.split(None, most)), most)


def decoded(value: bytes, name: str) -> str:
    """Decode a value that messages call by its name."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = ", or shorter than its length says" if value.startswith(_MARK_OF_CUT) else ""
        raise InvalidArgumentError(f"{name} is not UTF-8 at byte {error.start}{reason}") from error


def checked_text(entry: HplmEntry, value: bytes) -> Text:
    """Decode the text; an hPLM of pairs gets the segments before and after the first TAB.

    Raises:
        InvalidArgumentError: The text or a segment is empty, or not UTF-8.
    """
    text = decoded(value, "TEXT")
    if not text or text.isspace():
        raise InvalidArgumentError("TEXT is empty")
    if not entry.pair:
        return text
    first, tab, second = text.partition(PAIR_SEPARATOR)
    if not tab:
        raise InvalidArgumentError(f"hPLM {entry.id!r} reads pairs: TEXT needs a TAB between its segments")
    if not first.strip() or not second.strip():
        raise InvalidArgumentError("one segment of the pair in TEXT is empty")
    return first, second
