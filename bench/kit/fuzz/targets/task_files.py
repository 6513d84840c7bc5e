"""Training files of all tasks, corpora, and texts without labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.home import Home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_values import bad_json, encoded
from bench.kit.fuzz.target import Target
from builder.construct.tasks.dataset import TaskFiles, read_task
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.unlabelled import unlabelled_examples
from builder.construct.training.corpus import split_corpus

_CLASSES = [{"text": "the cat is near", "label": "animals"}, {"text": "my drill again", "label": "tools"}]
_VALUES = [{"text": "the cat is near", "label": 1.5}, {"text": "my drill again", "label": 2}]
_PAIRS = [{"text": "a cat", "text_pair": "a dog", "label": "yes"}, {"text": "a", "text_pair": "b", "label": "no"}]
_TAGGED = "the\tO\ncat\tB-animal\n\nmy\tO\nbig\tB-tool\ndrill\tI-tool\n"
_PLAIN = "the cat is near\n\nmy drill again\nlovely weather over the stable\n"


class TrainingFiles(Target):
    """Lines of other types, encodings, tags and lengths."""

    name = "training"
    cases = 60_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._bad, self._dev = scratch / "bad", scratch / "dev"
        self._good: dict[str | None, str] = {None: _lines(_CLASSES), "regression": _lines(_VALUES), "ner": _TAGGED}
        self._good["classification"] = _lines(_PAIRS)

    def attempt(self, draw: Draw) -> None:
        self._bad.write_bytes(bad_task_file(draw))
        match draw.randrange(4):
            case 0:
                split_corpus([self._bad], None)
            case 1:
                unlabelled_examples(self._bad, LabelledText("a cat", "x"), [], 10)
            case _:
                task = draw.choice(list(self._good))
                self._dev.write_text(self._good[task], encoding="utf-8")
                files = (self._bad, self._dev) if draw.happens(0.7) else (self._dev, self._bad)
                read_task(TaskFiles(*files), task)


def bad_task_file(draw: Draw) -> bytes:
    """A file of some format, of which a line or two are bad."""
    if draw.happens(0.5):
        text = draw.choice((_TAGGED, _PLAIN, _lines(_CLASSES)))
        return encoded(draw, text if draw.happens(0.2) else draw.edited(text))
    rows = draw.choice((_CLASSES, _VALUES, _PAIRS))
    lines = [json.dumps(row) for row in rows]
    lines.insert(draw.randint(0, len(lines)), bad_json(draw, draw.choice(rows)))
    return encoded(draw, "\n".join(lines))


def _lines(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
